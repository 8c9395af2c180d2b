// SPDX-License-Identifier: Apache-2.0
//
// Recorder: takes what the probes deliver, per process, and answers what the profile needs.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "daemon/cli/debug_fetcher.h"
#include "daemon/cli/device_modules.h"
#include "daemon/cli/process_record.h"
#include "daemon/join/assemble.h"
#include "daemon/join/device_source.h"
#include "daemon/join/joiner.h"
#include "daemon/join/stack_table.h"
#include "daemon/probe/event_sink.h"
#include "daemon/symbolize/symbolizer.h"
#include "daemon/target/shim_channel.h"
#include "daemon/unwind/file_cache.h"

namespace gpuprof::cli {

// Everything runs on the thread that polls the rings: a stack costs it about 6 us, ring and join
// included (10,000 a second of 30 frames took 6 % of one core), and the sampler asks for 1,000 a
// second and process. Under --stack-rate all it is bytes that run out first, the quota of 128 MiB/s
// in BPF or the ring: counted. A second thread would not help. Symbols are read at the end only;
// the executions have a ring of their own. Bounded: processes, names, devices and threads have
// limits against a hostile producer, and what a limit refuses is counted.
class Recorder final : public probe::EventSink,
                       public join::FrameSource,
                       public join::DeviceSource {
 public:
  // As JoinerLimits::max_processes. Counts every program of the session, the exited too, since
  // their stacks are symbolised at the end: a launcher of thousands is a usual target. An exited
  // one costs some KB (6.9 KB measured for a small program, most of it its mappings; files and
  // symbols are shared) and one descriptor, its root.
  static constexpr size_t kMaxProcesses = 16 * 1024;
  static constexpr size_t kMaxNameBytes = 32u << 20;
  static constexpr size_t kMaxThreadNames = 4096;  // per process
  static constexpr size_t kMaxDevices = 128;       // per process
  static constexpr size_t kMaxStallNames = 4096;   // per process, over its devices
  // 200 bytes each. A process with fewer than the second number (eight devices' names) may have
  // more while there are fewer than twice the first.
  static constexpr size_t kMaxStallNamesInAll = 32 * 1024;
  static constexpr size_t kReservedStallNames = 320;

  struct Totals {
    uint64_t executions = 0;
    uint64_t gpu_time_ns = 0;
    uint64_t busy_ns = 0;
    uint64_t lost = 0;  // records lost in a ring or told lost by a shim
    size_t devices = 0;
  };

  // Called from on_process for every injected program of a watched process, once its maps are read
  // (at once, since it may exit soon). The id has the image.
  using Admit = std::function<void(ProcessId, const gpuprof_process_v1&)>;

  // Called when the interpreter of a process was found, or is gone with its program (null).
  using SetPython = std::function<void(ProcessId, const gpuprof_python*)>;

  // Without `set_python` Python frames are not read. `thread_frames`: each call path begins with
  // its thread's name.
  explicit Recorder(Admit admit, SetPython set_python = nullptr, bool thread_frames = false)
      : admit_(std::move(admit)),
        set_python_(std::move(set_python)),
        thread_frames_(thread_frames) {}

  // The record of a process that was there before us. Null where the table is full.
  ProcessRecord* add_process(ProcessId process, const ShimBaseline& baseline);
  [[nodiscard]] ProcessRecord* find(ProcessId process);
  [[nodiscard]] const std::map<ProcessId, ProcessRecord>& processes() const { return processes_; }

  // Programs that came when the table was full: they are not profiled.
  [[nodiscard]] uint64_t programs_refused() const { return programs_refused_; }
  // Records that were decoded and are nobody's: of programs beyond the limit. Launches, executions,
  // PC samples and windows of those are in the joiner's counts.
  [[nodiscard]] uint64_t unconsumed() const { return unconsumed_; }
  // For the tests: how many processes' images are told apart at present.
  [[nodiscard]] size_t tracked_images() const { return exec_ids_.size(); }

  // The shim's own totals from its status page.
  void set_totals(ProcessId process, const target::ShimStatus& status);
  // The process is gone and the rings are drained.
  void process_exited(ProcessId process);

  // The file of a shim under whatever name, as the targets see it: no frame of it is of interest.
  void note_shim(std::string path);

  // Housekeeping: ages the join, looks for libraries that came and went.
  void advance(uint64_t now_ns);
  [[nodiscard]] Totals totals() const;
  // GPUs with executions. A process numbers the ones that it may use from 0, so GPUs are told apart
  // by their UUIDs; those without one are taken for the same in each process.
  [[nodiscard]] size_t device_count() const;
  join::JoinResult finish() { return joiner_.finish_window(this, this); }
  // finish() where another window follows: what the result's stacks are, since ours are given out
  // again, and the processes that ended in it, which forget() may take.
  struct Cut {
    join::JoinResult result;
    join::StackTable stacks;
    std::vector<ProcessId> ended;
  };
  Cut cut_window();
  // All that is known of a process that ended before the last cut. totals() stay.
  void forget(ProcessId process);
  [[nodiscard]] DeviceModules& device_modules() { return device_modules_; }
  [[nodiscard]] const DeviceModules& device_modules() const { return device_modules_; }
  [[nodiscard]] const join::StackTable& stacks() const { return stacks_; }
  [[nodiscard]] symbolize::SymbolCounts symbol_counts() const { return symbols_.counts(); }
  // Asked for the debug files of what lies on stacks, from now on.
  void use_fetcher(std::unique_ptr<DebugFetcher> fetcher);
  [[nodiscard]] DebugFetcher* fetcher() const { return fetcher_.get(); }

  // probe::EventSink
  void on_process(const probe::EventSource&, const gpuprof_process_v1&) override;
  void on_launch(const probe::EventSource&, const gpuprof_launch_v1&, const StackSample*) override;
  void on_execs(const probe::EventSource&, std::span<const gpuprof_exec_v1>) override;
  void on_pc_samples(const probe::EventSource&, std::span<const gpuprof_pc_sample_v1>) override;
  void on_name(const probe::EventSource&, uint32_t kind, uint64_t id,
               std::string_view name) override;
  void on_modules(const probe::EventSource&, std::span<const gpuprof_module_v1>) override;
  void on_device(const probe::EventSource&, const gpuprof_device_v1&) override;
  void on_window(const probe::EventSource&, const gpuprof_window_v1&) override;
  void on_drop(const probe::EventSource&, const gpuprof_drop_v1&) override;
  void on_loss(ProcessId, uint32_t probe, uint64_t records, probe::LossReason) override;

  // join::FrameSource
  const symbolize::SymbolizedPc& resolve(ProcessId, uint64_t pc) override;
  const std::vector<symbolize::Module>& modules(ProcessId) override;
  bool is_tool(const symbolize::Module& module) override { return shims_.contains(module.path); }
  join::ProcessInfo process(ProcessId) override;
  std::string thread_name(ProcessId, uint32_t tid) override;
  join::DeviceInfo device(ProcessId, uint32_t device_id) override;
  std::string_view kernel_name(ProcessId, uint64_t name_id) override;

  // join::DeviceSource
  const join::DeviceModule& device_module(ProcessId, uint64_t cubin_key) override;
  std::string_view stall_name(ProcessId, uint32_t device_id, uint32_t stall_index) override;

 private:
  ProcessId image_of(const probe::EventSource& source);
  ProcessRecord* record_of(const probe::EventSource& source);
  // The same; where there is none, `records` are counted as nobody's.
  ProcessRecord* consumer_of(const probe::EventSource& source, size_t records);
  using GpuUuid = std::array<uint8_t, sizeof(gpuprof_device_v1::uuid)>;
  static size_t add_devices(const ProcessRecord& record, std::set<GpuUuid>& known);
  static void add_totals(const ProcessRecord& record, Totals& out);
  void open_space(ProcessRecord& record);
  void open_layout(ProcessRecord& record);
  static void keep_module_numbers(ProcessRecord& record);
  void find_python(ProcessRecord& record);
  void unwind(ProcessRecord& record, const StackSample& stack, const std::string& thread);
  static void add_thread_frame(Layout& layout, const std::string& thread,
                               std::vector<uint64_t>& pcs);
  void want_debug_files(unwind::AddressSpace& space);
  void refresh_one(uint64_t now_ns);
  static bool is_plausible(const ProcessRecord& record, uint64_t since, bool executions);
  void apply_drop(ProcessRecord& record, uint32_t drop_class, uint64_t total);
  void take_stall_name(ProcessRecord& record, uint64_t id, std::string_view name);
  void apply_emitted(ProcessRecord& record, uint32_t probe, uint64_t total);

  Admit admit_;
  SetPython set_python_;
  bool thread_frames_;
  unwind::FileCache files_;                               // outlives the address spaces below
  std::unique_ptr<DebugFetcher> fetcher_;                 // null: nothing is fetched
  std::unordered_set<const unwind::ElfFile*> looked_at_;  // whether they lack debug information
  symbolize::SymbolCache symbols_;
  std::map<ProcessId, ProcessRecord> processes_;
  std::map<ProcessId, std::vector<uint32_t>> exec_ids_;  // by process: its images' exec ids
  std::set<std::string> shims_;
  uint64_t next_refresh_ns_ = 0;
  symbolize::SymbolizedPc resolved_;
  join::StackTable stacks_;
  join::Joiner joiner_;
  DeviceModules device_modules_;
  unwind::RawStack scratch_;
  size_t name_bytes_ = 0;
  size_t stall_names_ = 0;  // of all processes
  uint64_t programs_refused_ = 0;
  Totals forgotten_;  // of processes that were forgotten, as the next two
  std::set<GpuUuid> forgotten_gpus_;
  size_t forgotten_nameless_ = 0;
  uint64_t unconsumed_ = 0;
};

}  // namespace gpuprof::cli

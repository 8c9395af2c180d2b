// SPDX-License-Identifier: Apache-2.0
//
// Joiner: executions on the GPU meet the launches, and so the CPU stacks, that caused them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/base/process_id.h"
#include "daemon/join/accounting.h"
#include "daemon/join/pc_accounting.h"
#include "daemon/join/sampling_windows.h"
#include "daemon/join/stack_table.h"
#include "proto/usdt_abi.h"

namespace gpuprof::join {

class DeviceSource;
class FrameSource;

enum class Match : uint8_t {
  kInvalid = 0,  // no execution: the row is there for PC samples that joined none
  kExact,        // the execution's own launch had a stack
  kSampled,      // spread over the sampled stacks of the same kernel or graph: an estimate
  kUnmatched,    // no stack: Row::reason says why
};
const char* match_name(Match match);

// Stands for "several": the value was folded away to bound the number of rows.
inline constexpr uint32_t kFolded = UINT32_MAX;

// GPU time of one (process, stack, thread, kernel, device, context, stream, graph).
struct Row {
  uint32_t process = 0;  // index into JoinResult::processes
  StackId stack = kNoStack;
  uint32_t tid = 0;  // of the launching thread, 0: unknown
  Match match = Match::kInvalid;
  Unmatched reason = Unmatched::kNone;
  uint8_t kind = 0;       // enum gpuprof_kind; GPUPROF_KIND_INVALID: folded, shown as [other]
  uint8_t copy_kind = 0;  // enum gpuprof_copy_kind
  Serialized serialized = Serialized::kUnknown;
  uint32_t device_id = 0;  // these four may be kFolded
  uint32_t context_id = 0;
  uint32_t stream_id = 0;
  uint32_t graph_id = 0;  // 0: not in a graph
  uint64_t name_id = 0;   // of the kernel, 0: unknown
  uint64_t executions = 0;
  uint64_t time_ns = 0;
};

// Device code of one process that was sampled.
struct PcFunction {
  uint32_t process = 0;  // index into JoinResult::processes
  uint32_t device_id = 0;
  uint64_t cubin_key = 0;
  uint64_t function_name_id = 0;
  PcAttrib attrib = PcAttrib::kNone;
};

// What one instruction did, on the call path of one row. The row's own time and executions are
// handed out to its PC rows, wholly or not at all.
struct PcRow {
  uint32_t row = 0;            // index into JoinResult::rows
  uint32_t function = 0;       // index into JoinResult::pc_functions
  uint32_t pc_offset = 0;      // from the start of the function; kFolded: of many
  uint32_t stall = 0;          // index into JoinResult::stalls; kFolded: of many
  uint64_t samples = 0;        // StallKind::kStalled
  uint64_t stall_samples = 0;  // StallKind::kNotIssued
  uint64_t executions = 0;
  uint64_t time_ns = 0;
};

struct ProcessResult {
  ProcessId process;    // {0, 0}: executions of processes beyond the limit (all evicted)
  Accounting window;    // of this output window
  Accounting lifetime;  // since the joiner first saw the process
  // Something came of PC sampling: only then is Row::serialized worth a word.
  bool is_sampled = false;
  uint32_t pc_period = 0;  // log2 cycles, 0: unknown
  WindowCounts windows;
};

struct JoinStats {
  uint64_t launches = 0;  // launch records taken
  uint64_t launches_without_stack = 0;
  uint64_t launches_duplicate = 0;
  uint64_t launches_retired = 0;         // forgotten after their executions came
  uint64_t launches_never_executed = 0;  // forgotten by age: captured into a graph, failed, or lost
  uint64_t launches_evicted = 0;         // forgotten for want of room before any execution came
  uint64_t executions_resolved_early = 0;  // the waiting line was full: grace cut short
  uint64_t executions_folded = 0;          // counted under [other]: too many different kernels
  uint64_t streams_folded = 0;             // executions whose stream was dropped
  uint64_t rows_folded = 0;                // exact executions spread instead: too many rows
  uint64_t stacks_trimmed = 0;             // (kernel, stack) pairs left out of a spread
  uint64_t executions_beside_another = 0;  // kernels whose launch had one already: not exact
  uint64_t executions_of_another = 0;      // whose id is that of another kernel's launch: likewise
  uint64_t processes_refused = 0;          // records of processes beyond the limit
  uint64_t pc_resolved_early = 0;          // records with a correlation: grace cut short
  uint64_t pc_folded = 0;                  // counts that lost their instruction or stall
  uint64_t pc_stacks_trimmed = 0;          // (kernel, call path) pairs that got no samples
};

// The result of one output window. Rows are in a fixed order for a given input.
struct JoinResult {
  std::vector<ProcessResult> processes;
  // Every execution, and for PC samples that joined none rows without.
  std::vector<Row> rows;
  std::vector<PcFunction> pc_functions;
  std::vector<PcRow> pc_rows;       // ordered by row
  std::vector<std::string> stalls;  // ncu's short names
  JoinStats stats;                  // since the joiner was made
};

struct JoinerLimits {
  // How long an execution may wait for its launch record. The two travel through different rings
  // which one thread drains in turn, and the launch's probe fires before its activity record can
  // be flushed, save for a launching thread that is preempted between the driver's work and its
  // exit callback: the grace must outlast a poll round and a scheduling delay.
  uint64_t grace_ns = 500'000'000;
  uint32_t max_waiting = 256 * 1024;  // executions in grace, 32 bytes each
  // After its last use. A launch without an execution, or of a graph, may still be needed.
  uint64_t launch_age_ns = 600'000'000'000;
  // After the execution of a launch that has only one (kernel, copy).
  uint64_t executed_launch_age_ns = 10'000'000'000;
  uint32_t max_launches_per_process = 128 * 1024;  // 80 bytes each with their index
  uint32_t max_launches = 512 * 1024;
  // 1 to 2 KB each once exited: what it launched is forgotten then.
  uint32_t max_processes = 16 * 1024;
  // What executes: (process, kernel, device, context, stream, graph). Beyond the first number of
  // either pair the stream is dropped, beyond 5/4 of it the class is [other].
  uint32_t max_classes_per_process = 16 * 1024;
  uint32_t max_classes = 64 * 1024;
  // A process with fewer classes than this may have more while there are fewer than twice
  // max_classes: a few hostile ones cannot fold everybody else's kernels.
  uint32_t reserved_classes_per_process = 256;
  uint32_t max_exact_rows_per_process = 64 * 1024;  // (class, stack, thread); beyond: spread
  uint32_t max_exact_rows = 128 * 1024;
  uint32_t max_spread_rows =
      128 * 1024;  // beyond: a kernel is spread over its heaviest stacks only

  // How long a PC sample with a correlation waits for its execution and its launch: these are
  // flushed every 100 ms.
  uint64_t pc_grace_ns = 1'000'000'000;
  uint32_t max_pc_waiting = 64 * 1024;              // 64 bytes each
  uint32_t max_serialized_executions = 128 * 1024;  // 80 bytes each; 0.3 s of 200k/s at least
  // Functions, by device, context and target; beyond: the samples are refused.
  uint32_t max_pc_sources_per_process = 16 * 1024;
  uint32_t max_pc_sources = 64 * 1024;
  // (instruction, counter) pairs, 50 bytes each. Beyond either number an instruction's counts go to
  // its function's, beyond 5/4 of it they are refused.
  uint32_t max_pc_entries_per_process = 256 * 1024;
  uint32_t max_pc_entries = 512 * 1024;
  // (instruction, stall, call path) in the result, shared out among processes: each has what it
  // needs or an equal share. Beyond, light instructions are folded into their function.
  uint32_t max_pc_rows = 256 * 1024;
};

// Joins by (process, epoch, correlation). Launches and executions may come in any order. An
// execution whose launch record is not known when it comes waits up to `grace_ns`; after that, or
// at finish_window(), it counts as not sampled. Executions that were not sampled are summed by
// kernel (graph nodes: by graph) and spread over that key's sampled stacks by residual weight (ADR
// 0001).
//
// PC samples are joined when the window is finished (design.md, section 6): those with a
// correlation to that execution's call path, the others to the executions of their kernel, in
// proportion to GPU time.
//
// Every bound of JoinerLimits holds against a hostile producer; what a bound folds away is counted
// and stays in the totals. One thread at a time. Nothing fails.
class Joiner {
 public:
  explicit Joiner(const JoinerLimits& limits = {});
  ~Joiner();
  Joiner(const Joiner&) = delete;
  Joiner& operator=(const Joiner&) = delete;

  // `stack` kNoStack: the stack was lost or could not be unwound. `tid` at the daemon's pid
  // namespace level (the one in the record is the target's).
  void add_launch(ProcessId process, const gpuprof_launch_v1& launch, StackId stack, uint32_t tid);
  void add_execs(ProcessId process, std::span<const gpuprof_exec_v1> execs);
  void add_pc_samples(ProcessId process, std::span<const gpuprof_pc_sample_v1> samples);
  // Before the executions that the window holds, as they come.
  void add_window(ProcessId process, const gpuprof_window_v1& record);

  // Losses, for the accounting and for the reasons of unmatched executions.
  // `records` of `probe` (enum gpuprof_probe) did not arrive; `reason` is a probe::LossReason.
  void add_ring_loss(ProcessId process, uint32_t probe, uint64_t records, uint32_t reason);
  // A running total since the daemon attached, as drop_v1 tells it (less what stood before).
  void set_shim_loss(ProcessId process, uint32_t drop_class, uint64_t total);
  // Records of exec_v1 that the shim emitted since the daemon attached.
  void set_emitted(ProcessId process, uint64_t total);
  // Likewise, of pc_sample_v1.
  void set_pc_emitted(ProcessId process, uint64_t total);

  // Once a poll round, after both rings were drained. CLOCK_MONOTONIC. Ends graces, forgets
  // launches.
  void advance(uint64_t now_ns);

  // Closes the output window: every received execution is in the result, once, and every PC sample.
  // Drain both rings first. Launches stay for executions of the next window. The sources tell what
  // the counters of PC samples mean and which kernel a function belongs to; without, samples count
  // as unnamed.
  JoinResult finish_window(FrameSource* frames = nullptr, DeviceSource* device = nullptr);

  // The process is gone and its rings are drained. Its launches are forgotten once nothing of it
  // can wait for them any more, itself at the end of the next finish_window().
  void remove_process(ProcessId process);

  // Whether a cached launch refers to `stack` (for StackTable::retain after a window was written).
  [[nodiscard]] std::vector<StackId> live_stacks() const;

  // So far in this window, waiting executions as `pending`. Null if the process is unknown.
  [[nodiscard]] const Accounting* window_accounting(ProcessId process) const;
  [[nodiscard]] const JoinStats& stats() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpuprof::join

// SPDX-License-Identifier: Apache-2.0
//
// ScopeFilter: lets through the records of the processes that a Scope means.
#pragma once

#include <functional>
#include <unordered_map>

#include "daemon/base/process_id.h"
#include "daemon/probe/event_sink.h"

namespace gpuprof::cli {

// eBPF decides by process number and by cgroup of the unified hierarchy. Names, paths and the older
// hierarchies are judged here, once a program of a process, at the first word of it; the caller
// tells eBPF the answer, so that records which have to be dropped here are few. One thread, as for
// every EventSink.
class ScopeFilter final : public probe::EventSink {
 public:
  // Is this program meant? Asked once for each, unless more than kMaxPrograms are known.
  using Judge = std::function<bool(const probe::EventSource&)>;
  static constexpr size_t kMaxPrograms = 16 * 1024;

  ScopeFilter(probe::EventSink& next, Judge judge) : next_(next), judge_(std::move(judge)) {}

  // What was refused. Records are those that eBPF let through.
  [[nodiscard]] uint64_t programs_refused() const { return programs_; }
  [[nodiscard]] uint64_t records_refused() const { return records_; }

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

 private:
  struct Program {
    uint32_t exec_id = 0;
    bool meant = false;
  };
  bool admits(const probe::EventSource& source, size_t records);

  probe::EventSink& next_;
  Judge judge_;
  std::unordered_map<ProcessId, Program> programs_known_;  // the last of each process
  uint64_t programs_ = 0;
  uint64_t records_ = 0;
};

}  // namespace gpuprof::cli

// SPDX-License-Identifier: Apache-2.0
//
// What the probe library delivers: validated records in emission order, and every loss.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "daemon/base/process_id.h"
#include "daemon/base/stack_sample.h"
#include "proto/ring_abi.h"
#include "proto/usdt_abi.h"

namespace gpuprof::probe {

// Who fired. Valid for the call only.
struct EventSource {
  ProcessId process;
  uint32_t tid = 0;  // at the daemon's pid namespace level
  uint32_t uid = 0;
  uint32_t exec_id = 0;   // the kernel's count of the process's execs: which program it runs
  bool watched = false;   // BPF watches it: named to watch(), or forked by one that was watched
  uint64_t time_ns = 0;   // bpf_ktime_get_ns() of the hit
  std::string_view comm;  // of the thread
};

enum class LossReason {
  kRingFull,   // BPF could not reserve: counted in BPF and seen as a gap here
  kQuota,      // a per-pid or per-uid quota refused the batch
  kFault,      // BPF could not read the target's records
  kMalformed,  // count, size or content out of bounds
  kGap,        // sequence gap with no other reason known
};

// One thread calls all of these: the one that polls the rings. Spans and views die with the call.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void on_process(const EventSource&, const gpuprof_process_v1&) = 0;
  // `stack` is null where the stack was lost (flags of the ring header say why).
  virtual void on_launch(const EventSource&, const gpuprof_launch_v1&,
                         const StackSample* stack) = 0;
  virtual void on_execs(const EventSource&, std::span<const gpuprof_exec_v1>) = 0;
  virtual void on_pc_samples(const EventSource&, std::span<const gpuprof_pc_sample_v1>) = 0;
  // A whole string, chunks put together, sanitised (no control bytes, valid UTF-8).
  virtual void on_name(const EventSource&, uint32_t kind, uint64_t id, std::string_view name) = 0;
  virtual void on_modules(const EventSource&, std::span<const gpuprof_module_v1>) = 0;
  virtual void on_device(const EventSource&, const gpuprof_device_v1&) = 0;
  virtual void on_window(const EventSource&, const gpuprof_window_v1&) = 0;
  virtual void on_drop(const EventSource&, const gpuprof_drop_v1&) = 0;
  // `records` of `probe` (enum gpuprof_probe) are missing from the stream of `process`.
  virtual void on_loss(ProcessId process, uint32_t probe, uint64_t records, LossReason) = 0;
};

}  // namespace gpuprof::probe

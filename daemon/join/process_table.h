// SPDX-License-Identifier: Apache-2.0
//
// ProcessTable: what the joiner knows of each process, by slot.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "daemon/base/process_id.h"
#include "daemon/join/accounting.h"
#include "daemon/join/launch_cache.h"
#include "daemon/join/sampling_windows.h"
#include "daemon/join/window.h"
#include "proto/usdt_abi.h"

namespace gpuprof::join {

struct Process {
  ProcessId id;
  Accounting window;
  Accounting lifetime;
  LaunchCache launches;
  uint64_t launches_lost = 0;
  uint64_t max_weight_q32 = 0;
  uint32_t classes = 0;  // these four of this window
  uint32_t exact_rows = 0;
  uint32_t pc_sources = 0;
  uint32_t pc_entries = 0;
  bool is_gone = false;
  uint64_t gone_ns = 0;
  // The newest batch's ends: a second attach to the same probe delivers every batch twice.
  gpuprof_exec_v1 batch_first{};
  gpuprof_exec_v1 batch_last{};
  uint32_t batch_count = 0;
  ClassKey last_key;
  uint32_t last_class = UINT32_MAX;
  SamplingRoom* sampling_room = nullptr;
  // Null: nothing came that says that it is sampled.
  std::unique_ptr<SamplingWindows> sampling;
  bool has_correlated_samples = false;

  SamplingWindows& sampled() {
    if (!sampling) sampling = std::make_unique<SamplingWindows>(sampling_room);
    return *sampling;
  }
};

// Slots are given out again. One thread.
class ProcessTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  ProcessTable() = default;
  ProcessTable(const ProcessTable&) = delete;
  ProcessTable& operator=(const ProcessTable&) = delete;

  // kNone where the process is new and `limit` are there.
  uint32_t slot_of(ProcessId id, uint32_t limit);
  [[nodiscard]] Process* find(ProcessId id) const;
  Process& operator[](uint32_t slot) const { return *processes_[slot]; }
  void erase(uint32_t slot);

  // By slot; null: free.
  [[nodiscard]] const std::vector<std::unique_ptr<Process>>& slots() const { return processes_; }

 private:
  SamplingRoom sampling_room_;  // outlives the processes
  std::vector<std::unique_ptr<Process>> processes_;
  std::unordered_map<ProcessId, uint32_t> slots_;
  ProcessId last_id_{};
  uint32_t last_slot_ = kNone;
};

}  // namespace gpuprof::join

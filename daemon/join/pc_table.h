// SPDX-License-Identifier: Apache-2.0
//
// PcTable: the PC samples of one output window, by code and by how they join.
#pragma once

#include <cstdint>

#include "daemon/join/flat_index.h"
#include "daemon/join/joiner.h"
#include "daemon/join/stack_table.h"

namespace gpuprof::join {

// The execution that a correlation led to: its class in the window, and its launch's stack and
// thread where these were sampled.
struct PcTarget {
  uint32_t class_id = 0;
  StackId stack = kNoStack;
  uint32_t tid = 0;
};

// A function of one process on one device, and how its samples join.
struct PcSource {
  static constexpr uint32_t kByKernel = 0;
  static constexpr uint32_t kOfGraph = 1;  // correlated with a graph: as by kernel
  static constexpr uint32_t kFirstTarget = 2;

  uint64_t cubin_key = 0;
  uint64_t function_name_id = 0;
  uint32_t process = 0;  // slot
  uint32_t device_id = 0;
  uint32_t context_id = 0;
  uint32_t join = kByKernel;  // or kFirstTarget + index of the target

  [[nodiscard]] bool has_target() const { return join >= kFirstTarget; }
  friend bool operator==(const PcSource&, const PcSource&) = default;
};

// One counter of one instruction of a source.
struct PcKey {
  uint32_t source = 0;
  uint32_t pc_offset = 0;  // kFolded: its instructions were too many
  uint32_t stall_index = 0;
};

// Bounded by the pc limits. One thread.
class PcTable {
 public:
  using Sources = FlatIndex<PcSource, uint8_t>;
  using Entries = FlatIndex<PcKey, uint64_t>;

  explicit PcTable(const JoinerLimits& limits) : limits_(limits) {}

  // PcSource::join of an execution.
  uint32_t join_of(const PcTarget& target) {
    return PcSource::kFirstTarget + targets_.insert(target).first;
  }
  enum class Added : uint8_t { kWhole, kInFunction, kRefused };
  // The two numbers are how many sources and entries the process has: kept up to date.
  Added add(const PcSource& source, uint32_t pc_offset, uint32_t stall_index, uint64_t samples,
            uint32_t& used_sources, uint32_t& used_entries);

  [[nodiscard]] bool empty() const { return entries_.size() == 0; }
  [[nodiscard]] const Sources& sources() const { return sources_; }
  [[nodiscard]] const Entries& entries() const { return entries_; }
  [[nodiscard]] const PcTarget& target(const PcSource& source) const {
    return targets_[source.join - PcSource::kFirstTarget].key;
  }
  void clear();

 private:
  uint32_t source_of(const PcSource& source, uint32_t& used);

  const JoinerLimits& limits_;
  FlatIndex<PcTarget, uint8_t> targets_;
  Sources sources_;
  Entries entries_;
  PcSource last_source_;
  uint32_t last_id_ = UINT32_MAX;
};

}  // namespace gpuprof::join

// SPDX-License-Identifier: Apache-2.0
//
// LaunchCache: the sampled launches of one process whose executions may still come.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/join/flat_index.h"
#include "daemon/join/stack_table.h"
#include "proto/usdt_abi.h"

namespace gpuprof::join {

// (epoch, correlation) as one number.
inline uint64_t launch_key(uint32_t epoch, uint32_t correlation) {
  return uint64_t{epoch} << 32 | correlation;
}

struct Launch {
  // A graph's nodes may run in several contexts, each with its own spreading key. Beyond these the
  // launch's weight is not counted.
  static constexpr uint32_t kMaxGroups = 4;

  uint64_t weight_q32 = 0;
  uint64_t last_use_ns = 0;
  uint64_t last_execution = 0;  // fingerprint of the latest one: a repetition is a duplicate
  StackId stack = kNoStack;
  uint32_t tid = 0;
  uint32_t window = 0;               // in which `groups` count; they start anew with each window
  uint32_t groups[kMaxGroups] = {};  // whose weights hold this launch already
  uint32_t name = 0;  // low half of the kernel's name id, 0 where the launch did not tell it
  uint8_t group_count = 0;
  bool is_graph = false;
  bool executed = false;
};

struct LaunchCacheCounts {
  uint64_t retired = 0;
  uint64_t never_executed = 0;
  uint64_t evicted = 0;
};

// Bounded by its owner through make_room() and expire(). One thread.
class LaunchCache {
 public:
  Launch* find(uint64_t key) {
    const uint32_t at = launches_.find(key);
    return at == Index::kNone ? nullptr : &launches_[at].value;
  }
  // Null if the key is there already.
  Launch* insert(uint64_t key) {
    const auto [at, is_new] = launches_.insert(key);
    return is_new ? &launches_[at].value : nullptr;
  }
  [[nodiscard]] size_t size() const { return launches_.size(); }

  // Forgets launches by age since their last use: `executed_age_ns` after the execution of one that
  // has only one, `age_ns` for graphs and for those that wait.
  void expire(uint64_t now_ns, uint64_t age_ns, uint64_t executed_age_ns,
              LaunchCacheCounts& counts);
  // Leaves at most `keep`: executed single launches go first, then the oldest.
  void make_room(size_t keep, LaunchCacheCounts& counts);
  // Forgets all, and gives the memory back.
  void clear(LaunchCacheCounts& counts) {
    for (const Index::Entry& entry : launches_.entries())
      ++(entry.value.executed ? counts.retired : counts.never_executed);
    launches_ = Index();
  }
  void append_stacks(std::vector<StackId>& out) const;

 private:
  using Index = FlatIndex<uint64_t, Launch>;
  Index launches_;
};

}  // namespace gpuprof::join

// SPDX-License-Identifier: Apache-2.0
//
// SerializedExecutions: kernels that PC samples with a correlation may name. Samples come within a
// window of their execution, before it or after it.
#pragma once

#include <cstdint>
#include <utility>

#include "daemon/join/flat_index.h"
#include "daemon/join/window.h"

namespace gpuprof::join {

struct SerializedExecution {
  ClassKey key;
  uint64_t fingerprint = 0;
  bool is_shared = false;  // several executions have this correlation: a graph's
};

// The latest ones: at least half of `limit`, at most `limit`. One thread.
class SerializedExecutions {
 public:
  void add(uint64_t launch, const ClassKey& key, uint64_t fingerprint, size_t limit) {
    const Key at_key{launch, key.process};
    if (SerializedExecution* known = look_up(at_key)) {
      if (known->fingerprint != fingerprint) known->is_shared = true;
      return;
    }
    if (latest_.size() >= limit / 2) {
      std::swap(latest_, earlier_);
      latest_.clear();
    }
    latest_[latest_.insert(at_key).first].value = {key, fingerprint, key.graph_id != 0};
  }
  [[nodiscard]] const SerializedExecution* find(uint32_t process, uint64_t launch) {
    return look_up({launch, process});
  }
  void forget(uint32_t process) {
    const auto is_other = [&](const Index::Entry& entry) { return entry.key.process != process; };
    latest_.retain(is_other);
    earlier_.retain(is_other);
  }

 private:
  struct Key {
    uint64_t launch;
    uint64_t process;  // slot
  };
  using Index = FlatIndex<Key, SerializedExecution>;

  SerializedExecution* look_up(const Key& key) {
    for (Index* index : {&latest_, &earlier_}) {
      const uint32_t at = index->find(key);
      if (at != Index::kNone) return &(*index)[at].value;
    }
    return nullptr;
  }

  Index latest_;
  Index earlier_;
};

}  // namespace gpuprof::join

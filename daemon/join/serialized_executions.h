// SPDX-License-Identifier: Apache-2.0
//
// SerializedExecutions: kernels that PC samples with a correlation may name, for a while.
#pragma once

#include <cstdint>

#include "daemon/join/flat_index.h"
#include "daemon/join/window.h"

namespace gpuprof::join {

struct SerializedExecution {
  ClassKey key;
  uint64_t since_ns = 0;
  uint32_t fingerprint = 0;
  bool is_shared = false;  // several executions have this correlation: a graph's
};

// Bounded. One thread.
class SerializedExecutions {
 public:
  // False: no room, even after those older than `age_ns` were forgotten.
  bool add(uint64_t launch, const ClassKey& key, uint32_t fingerprint, uint64_t now_ns,
           uint64_t age_ns, size_t limit) {
    const Key at_key{launch, key.process};
    uint32_t at = executions_.find(at_key);
    if (at != Index::kNone) {
      SerializedExecution& known = executions_[at].value;
      if (known.fingerprint != fingerprint) known.is_shared = true;
      return true;
    }
    if (executions_.size() >= limit) {
      if (now_ns >= cleaned_ns_ + age_ns / 8) {
        cleaned_ns_ = now_ns;
        executions_.retain(
            [&](const Index::Entry& entry) { return entry.value.since_ns + age_ns > now_ns; });
      }
      if (executions_.size() >= limit) return false;
    }
    at = executions_.insert(at_key).first;
    executions_[at].value = {key, now_ns, fingerprint, key.graph_id != 0};
    return true;
  }
  [[nodiscard]] const SerializedExecution* find(uint32_t process, uint64_t launch) const {
    const uint32_t at = executions_.find({launch, process});
    return at == Index::kNone ? nullptr : &executions_[at].value;
  }
  void forget(uint32_t process) {
    executions_.retain([&](const Index::Entry& entry) { return entry.key.process != process; });
  }

 private:
  struct Key {
    uint64_t launch;
    uint64_t process;  // slot
  };
  using Index = FlatIndex<Key, SerializedExecution>;
  Index executions_;
  uint64_t cleaned_ns_ = 0;
};

}  // namespace gpuprof::join

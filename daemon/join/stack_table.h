// SPDX-License-Identifier: Apache-2.0
//
// StackTable: call stacks as small numbers.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace gpuprof::join {

// Names one interned stack; 0 is "no stack" and never given to one.
using StackId = uint32_t;
inline constexpr StackId kNoStack = 0;

struct StackTableLimits {
  uint32_t max_stacks = 128 * 1024;
  uint64_t max_pcs = 4 * 1024 * 1024;  // of all stacks together: 32 MiB
  uint32_t max_depth = 4096;           // of one stack
};

// Interns vectors of pcs. Two processes may share an id where their pcs are equal: an id means the
// numbers only, its reader knows the process.
//
// Bounded: a stack over a limit gets kNoStack and is counted. One thread at a time.
class StackTable {
 public:
  explicit StackTable(const StackTableLimits& limits = {});

  // The id of `pcs` (leaf first). kNoStack if it is empty or over a limit.
  StackId intern(std::span<const uint64_t> pcs);

  // Valid until the next intern() or retain(). Empty for kNoStack and for unknown ids.
  [[nodiscard]] std::span<const uint64_t> pcs(StackId id) const;

  // Drops every stack for which `live` is false; their numbers are given out again. Ids that stay
  // keep their number. What lets a long run forget stacks that no launch and no row refers to.
  void retain(const std::function<bool(StackId)>& live);

  [[nodiscard]] uint32_t size() const { return live_; }
  // Stacks refused because of a limit.
  [[nodiscard]] uint64_t overflows() const { return overflows_; }

 private:
  struct Entry {
    uint64_t hash = 0;
    uint64_t offset = 0;
    uint32_t length = 0;  // 0: free
  };

  [[nodiscard]] uint64_t hash(std::span<const uint64_t> pcs) const;
  void rehash(size_t slots);
  void place(StackId id);

  StackTableLimits limits_;
  uint64_t seed_;
  std::vector<Entry> entries_;  // by id; entry 0 stays unused
  std::vector<StackId> free_;
  std::vector<StackId> slots_;  // open addressing, 0: empty
  std::vector<uint64_t> arena_;
  uint32_t live_ = 0;
  uint64_t overflows_ = 0;
};

}  // namespace gpuprof::join

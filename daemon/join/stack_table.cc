// SPDX-License-Identifier: Apache-2.0
#include "daemon/join/stack_table.h"

#include <algorithm>

#include "daemon/join/flat_index.h"

namespace gpuprof::join {

StackTable::StackTable(const StackTableLimits& limits)
    : limits_(limits), seed_(random_hash_seed()), entries_(1), slots_(64, 0) {}

uint64_t StackTable::hash(std::span<const uint64_t> pcs) const {
  return XXH3_64bits_withSeed(pcs.data(), pcs.size_bytes(), seed_);
}

void StackTable::place(StackId id) {
  const size_t mask = slots_.size() - 1;
  size_t i = entries_[id].hash & mask;
  while (slots_[i] != 0) i = (i + 1) & mask;
  slots_[i] = id;
}

void StackTable::rehash(size_t slots) {
  slots_.assign(slots, 0);
  for (StackId id = 1; id < entries_.size(); ++id) {
    if (entries_[id].length != 0) place(id);
  }
}

StackId StackTable::intern(std::span<const uint64_t> pcs) {
  if (pcs.empty()) return kNoStack;
  const uint64_t h = hash(pcs);
  const size_t mask = slots_.size() - 1;
  for (size_t i = h & mask; slots_[i] != 0; i = (i + 1) & mask) {
    const Entry& entry = entries_[slots_[i]];
    if (entry.hash == h && entry.length == pcs.size() &&
        std::equal(pcs.begin(), pcs.end(), arena_.begin() + static_cast<ptrdiff_t>(entry.offset))) {
      return slots_[i];
    }
  }
  if (live_ >= limits_.max_stacks || pcs.size() > limits_.max_depth ||
      arena_.size() + pcs.size() > limits_.max_pcs) {
    ++overflows_;
    return kNoStack;
  }
  StackId id = 0;
  if (free_.empty()) {
    id = static_cast<StackId>(entries_.size());
    entries_.emplace_back();
  } else {
    id = free_.back();
    free_.pop_back();
  }
  entries_[id] = {h, arena_.size(), static_cast<uint32_t>(pcs.size())};
  arena_.insert(arena_.end(), pcs.begin(), pcs.end());
  ++live_;
  if (size_t{live_} * 2 > slots_.size()) {
    rehash(slots_.size() * 2);
  } else {
    place(id);
  }
  return id;
}

std::span<const uint64_t> StackTable::pcs(StackId id) const {
  if (id == kNoStack || id >= entries_.size()) return {};
  return {arena_.data() + entries_[id].offset, entries_[id].length};
}

void StackTable::retain(const std::function<bool(StackId)>& live) {
  std::vector<uint64_t> arena;
  for (StackId id = 1; id < entries_.size(); ++id) {
    Entry& entry = entries_[id];
    if (entry.length == 0) continue;
    if (live(id)) {
      const std::span<const uint64_t> kept = pcs(id);
      const uint64_t offset = arena.size();
      arena.insert(arena.end(), kept.begin(), kept.end());
      entry.offset = offset;
    } else {
      entry = {};
      free_.push_back(id);
      --live_;
    }
  }
  arena_.swap(arena);
  rehash(slots_.size());
}

}  // namespace gpuprof::join

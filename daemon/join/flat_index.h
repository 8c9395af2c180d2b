// SPDX-License-Identifier: Apache-2.0
//
// FlatIndex: a hash table from small plain keys to values that lie densely, in insertion order.
#pragma once

#include <sys/random.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace gpuprof::join {

// Keys come from targets: with a fixed seed one could make them all collide.
inline uint64_t random_hash_seed() {
  uint64_t seed = 0;
  if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed)) seed = 0x9e3779b97f4a7c15u;
  return seed;
}

// `Key` is compared and hashed by its bytes: no padding. Entries are visited in insertion order, so
// what is made from them does not depend on the seed. An index is valid until retain() or clear().
// Not bounded by itself: the owner asks size() first.
template <class Key, class Value>
class FlatIndex {
 public:
  static_assert(std::has_unique_object_representations_v<Key>);
  struct Entry {
    Key key;
    Value value;
  };
  static constexpr uint32_t kNone = UINT32_MAX;

  explicit FlatIndex(uint64_t seed = random_hash_seed()) : seed_(seed) {}

  [[nodiscard]] uint32_t find(const Key& key) const {
    if (slots_.empty()) return kNone;
    const uint64_t h = hash(key);
    for (size_t i = h & mask();; i = (i + 1) & mask()) {
      const uint64_t slot = slots_[i];
      if (slot == 0) return kNone;
      if (tag(slot) == tag(h) && same(entries_[index(slot)].key, key)) return index(slot);
    }
  }

  // The entry of `key` and whether it is new (its value value-initialised).
  std::pair<uint32_t, bool> insert(const Key& key) {
    if ((entries_.size() + 1) * 2 > slots_.size()) rehash(slots_.empty() ? 64 : slots_.size() * 2);
    const uint64_t h = hash(key);
    size_t i = h & mask();
    for (; slots_[i] != 0; i = (i + 1) & mask()) {
      const uint64_t slot = slots_[i];
      if (tag(slot) == tag(h) && same(entries_[index(slot)].key, key)) return {index(slot), false};
    }
    const auto at = static_cast<uint32_t>(entries_.size());
    entries_.push_back(Entry{key, Value{}});
    slots_[i] = make_slot(h, at);
    return {at, true};
  }

  Entry& operator[](uint32_t i) { return entries_[i]; }
  const Entry& operator[](uint32_t i) const { return entries_[i]; }
  [[nodiscard]] size_t size() const { return entries_.size(); }
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }

  // Keeps the entries for which `keep(entry)` holds, in their order; gives memory back where much
  // became free.
  template <class Keep>
  void retain(Keep keep) {
    size_t out = 0;
    for (Entry& entry : entries_) {
      if (!keep(entry)) continue;
      if (&entries_[out] != &entry) entries_[out] = entry;
      ++out;
    }
    if (out == entries_.size()) return;
    entries_.resize(out);
    if (out * 4 < entries_.capacity()) entries_.shrink_to_fit();
    size_t slots = 64;
    while (slots < (out + 1) * 2) slots *= 2;
    rehash(slots);
  }

  // A window's worth of memory is kept for the next one.
  void clear() {
    entries_.clear();
    std::fill(slots_.begin(), slots_.end(), 0);
  }

 private:
  // A slot is the hash's upper half and the entry's index + 1; 0 is empty.
  static uint64_t make_slot(uint64_t h, uint32_t at) {
    return (h & 0xffffffff00000000u) | (uint64_t{at} + 1);
  }
  static uint32_t tag(uint64_t v) { return static_cast<uint32_t>(v >> 32); }
  static uint32_t index(uint64_t slot) { return static_cast<uint32_t>(slot) - 1; }
  static bool same(const Key& a, const Key& b) { return std::memcmp(&a, &b, sizeof(Key)) == 0; }
  [[nodiscard]] uint64_t hash(const Key& key) const {
    return XXH3_64bits_withSeed(&key, sizeof(Key), seed_);
  }
  [[nodiscard]] size_t mask() const { return slots_.size() - 1; }

  void rehash(size_t slots) {
    if (slots * 4 <= slots_.capacity()) std::vector<uint64_t>().swap(slots_);
    slots_.assign(slots, 0);
    for (uint32_t at = 0; at < entries_.size(); ++at) {
      const uint64_t h = hash(entries_[at].key);
      size_t i = h & mask();
      while (slots_[i] != 0) i = (i + 1) & mask();
      slots_[i] = make_slot(h, at);
    }
  }

  uint64_t seed_;
  std::vector<Entry> entries_;
  std::vector<uint64_t> slots_;  // power of two, at most half full
};

}  // namespace gpuprof::join

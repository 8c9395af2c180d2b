// SPDX-License-Identifier: Apache-2.0
//
// CodeRanges: stretches of generated code, of which later ones replace earlier ones.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace gpuprof::symbolize {

// Ranges are numbered in the order in which they are added.
class CodeRanges {
 public:
  static constexpr int kMaxEnclosing = 16;  // looked at around an address

  // False, and not added: empty, too large, or past the end of the address space.
  bool add(uint64_t start, uint64_t size) {
    if (size == 0 || size > (uint64_t{1} << 32) || start > UINT64_MAX - size) return false;
    ranges_.push_back({start, start + size, static_cast<uint32_t>(ranges_.size())});
    is_sorted_ = false;
    return true;
  }
  [[nodiscard]] size_t size() const { return ranges_.size(); }
  void clear() { ranges_.clear(); }

  // The number of the range added last of those that hold `pc`.
  std::optional<uint32_t> find(uint64_t pc) {
    sort();
    auto it = std::upper_bound(ranges_.begin(), ranges_.end(), pc,
                               [](uint64_t at, const Range& r) { return at < r.start; });
    const Range* best = nullptr;
    for (int back = 0; it != ranges_.begin() && back < kMaxEnclosing; ++back) {
      --it;
      if (pc < it->end && (best == nullptr || it->number > best->number)) best = &*it;
    }
    return best == nullptr ? std::nullopt : std::optional(best->number);
  }

 private:
  struct Range {
    uint64_t start = 0, end = 0;
    uint32_t number = 0;
  };
  // By start; of equal starts the last one goes last, where find() meets it first.
  void sort() {
    if (is_sorted_) return;
    std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) {
      return a.start != b.start ? a.start < b.start : a.number < b.number;
    });
    is_sorted_ = true;
  }

  std::vector<Range> ranges_;
  bool is_sorted_ = true;
};

}  // namespace gpuprof::symbolize

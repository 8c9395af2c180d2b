// SPDX-License-Identifier: Apache-2.0
//
// CfiCursor: reads a part of a section with call frame information, whose bytes are hostile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace gpuprof::unwind {

// A part [begin, end) of a section, in section offsets: pointers in CFI are relative to the place
// they stand at. Reading past the end gives 0 and latches failed(); the cursor then stays at the
// end, so a loop over `!done()` ends. An LEB128 has at most 10 bytes (64 bits), so that reading one
// is no loop over the section.
class CfiCursor {
 public:
  CfiCursor(std::span<const uint8_t> section, uint64_t begin, uint64_t end)
      : section_(section), at_(begin), end_(end) {
    if (end_ > section_.size()) end_ = section_.size();
    if (at_ > end_) fail();
  }

  [[nodiscard]] bool failed() const { return failed_; }
  [[nodiscard]] bool done() const { return at_ >= end_; }
  [[nodiscard]] uint64_t offset() const { return at_; }
  [[nodiscard]] uint64_t end() const { return end_; }

  // Little-endian: ElfFile takes no other files.
  template <class T>
  T fixed() {
    T value{};
    if (end_ - at_ < sizeof(T)) {
      fail();
      return value;
    }
    std::memcpy(&value, section_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  uint64_t uleb() {
    unsigned shift = 0;
    uint8_t last = 0;
    return leb(shift, last);
  }

  int64_t sleb() {
    unsigned shift = 0;
    uint8_t last = 0;
    uint64_t value = leb(shift, last);
    if (shift < 64 && (last & 0x40) != 0) value |= ~uint64_t{0} << shift;
    return static_cast<int64_t>(value);
  }

  void skip(uint64_t count) {
    if (count > end_ - at_) {
      fail();
    } else {
      at_ += count;
    }
  }

 private:
  static constexpr unsigned kMaxLebBits = 70;

  uint64_t leb(unsigned& shift, uint8_t& last) {
    uint64_t value = 0;
    while (shift < kMaxLebBits && at_ < end_) {
      last = section_[at_++];
      if (shift < 64) value |= uint64_t{last & 0x7fu} << shift;
      shift += 7;
      if ((last & 0x80) == 0) return value;
    }
    fail();
    last = 0;
    return 0;
  }

  void fail() {
    failed_ = true;
    at_ = end_;
  }

  std::span<const uint8_t> section_;
  uint64_t at_;
  uint64_t end_;
  bool failed_ = false;
};

}  // namespace gpuprof::unwind

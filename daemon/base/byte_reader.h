// SPDX-License-Identifier: Apache-2.0
//
// ByteReader: a cursor over hostile little-endian bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace gpuprof {

// Reading past the end gives 0 or "" and latches failed(); the cursor then stays at the end, so a
// loop over `!done()` ends. A longer LEB128 than kMaxLebBytes fails too, so that reading one is no
// loop over the section. Views point into the bytes given.
class ByteReader {
 public:
  static constexpr unsigned kMaxLebBytes = 10;  // 64 bits

  explicit ByteReader(std::span<const std::byte> bytes)
      : begin_(reinterpret_cast<const uint8_t*>(bytes.data())),
        cursor_(begin_),
        end_(begin_ + bytes.size()) {}

  [[nodiscard]] bool failed() const { return failed_; }
  [[nodiscard]] bool done() const { return cursor_ == end_; }
  [[nodiscard]] size_t offset() const { return static_cast<size_t>(cursor_ - begin_); }
  [[nodiscard]] size_t left() const { return static_cast<size_t>(end_ - cursor_); }

  // Little-endian hosts only, as the rest of the project.
  template <class T>
  T fixed() {
    T value{};
    if (left() < sizeof(T)) {
      fail();
      return value;
    }
    std::memcpy(&value, cursor_, sizeof(T));
    cursor_ += sizeof(T);
    return value;
  }

  // LEB128 (DWARF 5, 7.6); bits beyond the 64th are dropped.
  uint64_t uleb() { return leb().value; }

  int64_t sleb() {
    const Leb read = leb();
    const bool negative = read.bits < 64 && (read.last & 0x40) != 0;
    return static_cast<int64_t>(read.value | (negative ? ~uint64_t{0} << read.bits : 0));
  }

  std::string_view string() {
    const void* const nul = cursor_ == end_ ? nullptr : std::memchr(cursor_, 0, left());
    if (nul == nullptr) {
      fail();
      return {};
    }
    const auto* const text = reinterpret_cast<const char*>(cursor_);
    cursor_ = static_cast<const uint8_t*>(nul) + 1;
    return {text, static_cast<size_t>(reinterpret_cast<const char*>(nul) - text)};
  }

  void skip(uint64_t count) { static_cast<void>(take(count)); }

  std::span<const std::byte> take(uint64_t count) {
    if (count > left()) {
      fail();
      return {};
    }
    const auto* const taken = reinterpret_cast<const std::byte*>(cursor_);
    cursor_ += count;
    return {taken, static_cast<size_t>(count)};
  }

 private:
  struct Leb {
    uint64_t value = 0;
    unsigned bits = 0;
    uint8_t last = 0;
  };

  Leb leb() {
    Leb read;
    while (read.bits < 7 * kMaxLebBytes && cursor_ != end_) {
      read.last = *cursor_++;
      if (read.bits < 64) read.value |= uint64_t{read.last & 0x7fu} << read.bits;
      read.bits += 7;
      if ((read.last & 0x80) == 0) return read;
    }
    fail();
    return {};
  }

  void fail() {
    failed_ = true;
    cursor_ = end_;
  }

  const uint8_t* begin_;
  const uint8_t* cursor_;
  const uint8_t* end_;
  bool failed_ = false;
};

}  // namespace gpuprof

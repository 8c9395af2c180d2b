// SPDX-License-Identifier: Apache-2.0
//
// ByteReader: a cursor over hostile little-endian bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace gpuprof::cubin {

// Reading past the end gives 0 or "" and latches failed(); the cursor then stays at the end, so a
// loop over `!done()` ends. Views point into the bytes given.
class ByteReader {
 public:
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

  // LEB128; bits beyond the 64th are dropped, as every producer's reader does.
  uint64_t uleb() {
    uint64_t value = 0;
    for (unsigned shift = 0; cursor_ != end_; shift += 7) {
      const uint8_t byte = *cursor_++;
      if (shift < 64) value |= uint64_t{byte & 0x7fu} << shift;
      if ((byte & 0x80) == 0) return value;
    }
    fail();
    return 0;
  }

  int64_t sleb() {
    uint64_t value = 0;
    unsigned shift = 0;
    while (cursor_ != end_) {
      const uint8_t byte = *cursor_++;
      if (shift < 64) value |= uint64_t{byte & 0x7fu} << shift;
      shift += 7;
      if ((byte & 0x80) != 0) continue;
      if (shift < 64 && (byte & 0x40) != 0) value |= ~uint64_t{0} << shift;
      return static_cast<int64_t>(value);
    }
    fail();
    return 0;
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
  void fail() {
    failed_ = true;
    cursor_ = end_;
  }

  const uint8_t* begin_;
  const uint8_t* cursor_;
  const uint8_t* end_;
  bool failed_ = false;
};

}  // namespace gpuprof::cubin

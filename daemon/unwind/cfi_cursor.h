// SPDX-License-Identifier: Apache-2.0
//
// CfiCursor: reads a part of a section with call frame information, whose bytes are hostile.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "daemon/base/byte_reader.h"

namespace gpuprof::unwind {

// A part [begin, end) of a section, in section offsets: pointers in CFI are relative to the place
// they stand at. Fails like the ByteReader that it is.
class CfiCursor {
 public:
  CfiCursor(std::span<const uint8_t> section, uint64_t begin, uint64_t end)
      : end_(std::min<uint64_t>(end, section.size())),
        begin_(std::min(begin, end_)),
        reader_(std::as_bytes(section.subspan(begin_, end_ - begin_))) {
    if (begin > end_) reader_.skip(1);
  }

  [[nodiscard]] bool failed() const { return reader_.failed(); }
  [[nodiscard]] bool done() const { return reader_.done(); }
  [[nodiscard]] uint64_t offset() const { return begin_ + reader_.offset(); }
  [[nodiscard]] uint64_t end() const { return end_; }

  // Little-endian: ElfFile takes no other files.
  template <class T>
  T fixed() {
    return reader_.fixed<T>();
  }
  uint64_t uleb() { return reader_.uleb(); }
  int64_t sleb() { return reader_.sleb(); }
  void skip(uint64_t count) { reader_.skip(count); }

 private:
  uint64_t end_;
  uint64_t begin_;
  ByteReader reader_;
};

}  // namespace gpuprof::unwind

// SPDX-License-Identifier: Apache-2.0
#include "daemon/python/line_table.h"

#include <cstddef>

namespace gpuprof::python {
namespace {

uint32_t line_number(int64_t line) {
  return line > 0 && line <= INT32_MAX ? static_cast<uint32_t>(line) : 0;
}

// Pairs (bytes, lines): the line changes by `lines` after `bytes` more bytes.
uint32_t lnotab_line(std::span<const uint8_t> table, int64_t line, uint32_t offset) {
  uint64_t address = 0;
  for (size_t i = 0; i + 1 < table.size(); i += 2) {
    address += table[i];
    if (address > offset) break;
    line += static_cast<int8_t>(table[i + 1]);
  }
  return line_number(line);
}

// Pairs (bytes, lines): the next `bytes` bytes have the line before plus `lines`; -128: no line.
uint32_t range_line(std::span<const uint8_t> table, int64_t line, uint32_t offset) {
  uint64_t end = 0;
  for (size_t i = 0; i + 1 < table.size(); i += 2) {
    const auto delta = static_cast<int8_t>(table[i + 1]);
    if (delta != -128) line += delta;
    end += table[i];
    if (offset < end) return delta == -128 ? 0 : line_number(line);
  }
  return 0;
}

constexpr uint8_t kFirstByte = 0x80;  // of an entry; no other byte has it

// Six bits a byte, the lowest first; bit 6: more follow. The sign is the lowest bit of the value.
int64_t signed_varint(std::span<const uint8_t> table, size_t at) {
  uint64_t value = 0;
  for (unsigned shift = 0; at < table.size() && shift < 36; ++at, shift += 6) {
    value |= static_cast<uint64_t>(table[at] & 0x3f) << shift;
    if ((table[at] & 0x40) == 0) break;
  }
  const auto magnitude = static_cast<int64_t>(value >> 1);
  return (value & 1) != 0 ? -magnitude : magnitude;
}

uint32_t location_line(std::span<const uint8_t> table, int64_t line, uint32_t offset) {
  constexpr unsigned kOneLine0 = 10, kOneLine2 = 12, kNoColumns = 13, kLong = 14, kNone = 15;
  constexpr uint64_t kUnit = 2;  // bytes of an instruction
  uint64_t end = 0;
  for (size_t at = 0; at < table.size();) {
    const uint8_t head = table[at];
    if ((head & kFirstByte) == 0) return 0;
    const unsigned code = (head >> 3) & 15;
    if (code >= kOneLine0 && code <= kOneLine2) line += code - kOneLine0;
    if (code == kNoColumns || code == kLong) line += signed_varint(table, at + 1);
    end += ((head & 7u) + 1u) * kUnit;
    if (offset < end) return code == kNone ? 0 : line_number(line);
    do ++at;
    while (at < table.size() && (table[at] & kFirstByte) == 0);
  }
  return 0;
}

}  // namespace

uint32_t line_at(LineTableKind kind, std::span<const uint8_t> table, int32_t first_line,
                 uint32_t offset) {
  switch (kind) {
    case LineTableKind::kLnotab:
      return lnotab_line(table, first_line, offset);
    case LineTableKind::kRanges:
      return range_line(table, first_line, offset);
    case LineTableKind::kLocations:
      return location_line(table, first_line, offset);
  }
  return 0;
}

}  // namespace gpuprof::python

// SPDX-License-Identifier: Apache-2.0
//
// What is asked of a line program before libdw reads it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gpuprof::symbolize {

// A program of one byte a row costs libdw some 40 bytes a row.
inline constexpr uint64_t kMaxLineProgramBytes = uint64_t{4} << 20;

// What libdw takes from the unit that names the program.
struct LineUnit {
  bool has_directory = false;  // a readable DW_AT_comp_dir
  uint8_t address_bytes = 8;
};

// Whether libdw (0.192) may read the program at `offset` of .debug_line. It trusts the header's
// length, and at a DW_LNE_define_file takes the length of a directory's name: below DWARF 5 that is
// null where the unit has none. 64-bit DWARF is refused.
[[nodiscard]] bool may_read_lines(std::span<const std::byte> debug_line, uint64_t offset,
                                  const LineUnit& unit);

}  // namespace gpuprof::symbolize

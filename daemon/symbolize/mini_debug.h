// SPDX-License-Identifier: Apache-2.0
//
// MiniDebugInfo: the symbol table that distributions leave in a stripped file.
#pragma once

#include <libelf.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpuprof::symbolize {

inline constexpr size_t kMaxMiniDebugBytes = size_t{32} << 20;       // decompressed
inline constexpr uint64_t kMaxMiniDebugMemory = uint64_t{80} << 20;  // of the decompressor: xz -9

// The ELF image in .gnu_debugdata (xz), which has the symbols of functions that .dynsym lacks; the
// format is gdb's ("MiniDebugInfo"). Empty if there is none, or it is damaged or larger than the
// bounds. `has_section` tells of one that could not be read.
struct MiniDebug {
  std::vector<uint8_t> image;
  bool has_section = false;
};
MiniDebug read_mini_debug(Elf* elf);

}  // namespace gpuprof::symbolize

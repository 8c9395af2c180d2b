// SPDX-License-Identifier: Apache-2.0
//
// Where an ELF file keeps its call frame information.
#pragma once

#include <libelf.h>

#include <cstdint>
#include <optional>
#include <span>

#include "daemon/unwind/fde_finder.h"

namespace gpuprof::unwind {

// A file with more sections is no program: each costs libelf some 200 bytes when it opens the file.
inline constexpr uint64_t kMaxSections = 65536;

// The number that the headers of a 64-bit little-endian file claim.
uint64_t section_count(std::span<const uint8_t> elf);

// .eh_frame with the table of .eh_frame_hdr, by the section headers, else by PT_GNU_EH_FRAME.
std::optional<FdeFinder> find_eh_frame(std::span<const uint8_t> elf);

// .debug_frame of the file that `elf` was opened for; decompressed in `handle`, if need be and it
// then has at most FdeFinder::kMaxIndexedBytes.
std::optional<FdeFinder> find_debug_frame(std::span<const uint8_t> elf, Elf* handle);

}  // namespace gpuprof::unwind

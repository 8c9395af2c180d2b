// SPDX-License-Identifier: Apache-2.0
//
// ElfImage: the parts of a cubin's ELF file that name code and lines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "daemon/base/result.h"

namespace gpuprof::cubin {

struct TextSection {
  uint32_t index = 0;         // in the section table
  std::string_view function;  // what follows ".text." in its name
  uint64_t size_bytes = 0;
  std::span<const std::byte> code;
};

struct FunctionSymbol {
  std::string_view name;
  uint32_t text = 0;  // index into ElfImage::texts
  uint64_t offset = 0;
  uint64_t size_bytes = 0;
  bool is_kernel = false;
};

// Where a DW_LNE_set_address operand points to, by its relocation.
struct RelocatedAddress {
  uint64_t operand = 0;            // its offset in .debug_line
  uint32_t text = 0;               // index into ElfImage::texts
  uint64_t offset = 0;             // in that section, without the operand's stored value
  bool adds_stored_value = false;  // SHT_REL keeps the addend in the operand
};

// A relocation by which code, or data that is loaded with it, has an address of code.
struct CodeReference {
  static constexpr uint32_t kData = UINT32_MAX;
  uint32_t to_text = 0;      // index into ElfImage::texts
  uint32_t from_text = 0;    // the same, or kData
  uint64_t from_offset = 0;  // of what is relocated, in its section
  uint64_t to_offset = 0;
  bool adds_stored_value = false;
};

// A view of bytes that outlive it. Every offset, size and name in it lies inside the bytes.
struct ElfImage {
  uint32_t sm = 0;
  uint32_t abi_version = 0;
  uint64_t file_bytes = UINT64_MAX;
  std::vector<TextSection> texts;  // in the order of the section table
  std::vector<FunctionSymbol> functions;
  std::span<const std::byte> debug_line;  // empty: none
  std::span<const std::byte> debug_str;
  std::vector<RelocatedAddress> line_addresses;  // sorted by operand
  // To sections of several functions; by to_text, from_text, from_offset. nullopt: they are not all
  // known, or sections overlap as no compiler's do, so that reading each would take a long time.
  std::optional<std::vector<CodeReference>> code_references;

  // kUnsupported: not a cubin; kCorrupt: a cubin that contradicts itself.
  static Result<ElfImage> parse(std::span<const std::byte> bytes);
};

}  // namespace gpuprof::cubin

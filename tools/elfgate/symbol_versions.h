// SPDX-License-Identifier: Apache-2.0
//
// SymbolVersions: DT_VERNEED, DT_VERDEF and DT_VERSYM (LSB, "Symbol Versioning").
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tools/elfgate/dynamic_section.h"
#include "tools/elfgate/facts.h"

namespace gpuprof::elfgate {

class SymbolVersions {
 public:
  static Result<SymbolVersions> read(const ElfImage& image, const DynamicSection& dynamic);

  // Reads DT_VERSYM for `count` symbols; to be called before `name_symbol`.
  Status read_indexes(const ElfImage& image, const DynamicSection& dynamic, uint64_t count);
  // Gives the symbol of that index its version and enters it in the need that it uses.
  void name_symbol(uint64_t index, Symbol& symbol);

  std::vector<VersionNeed> needs;
  std::vector<std::string_view> definitions;

 private:
  Status read_needs(const ElfImage& image, const DynamicSection& dynamic);
  Status read_need_versions(std::span<const uint8_t> table, uint64_t offset, uint16_t count,
                            std::string_view file, const DynamicSection& dynamic);
  Status read_definitions(const ElfImage& image, const DynamicSection& dynamic);

  std::unordered_map<uint16_t, size_t> need_of_index_;
  std::unordered_map<uint16_t, std::string_view> definition_of_index_;
  std::span<const uint8_t> indexes_;
};

}  // namespace gpuprof::elfgate

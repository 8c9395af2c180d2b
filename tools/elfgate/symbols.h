// SPDX-License-Identifier: Apache-2.0
//
// The dynamic symbol table and the relocations.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/elfgate/dynamic_section.h"
#include "tools/elfgate/facts.h"
#include "tools/elfgate/symbol_versions.h"

namespace gpuprof::elfgate {

// `highest_symbol` becomes at least the highest symbol index that a relocation names.
Result<Relocations> read_relocations(const ElfImage& image, const DynamicSection& dynamic,
                                     uint64_t& highest_symbol);

// Without the null symbol. PT_DYNAMIC does not say how many there are: the hash tables, the section
// header and the relocations do, each for a part.
Result<std::vector<Symbol>> read_symbols(const ElfImage& image, const DynamicSection& dynamic,
                                         uint64_t highest_symbol, SymbolVersions& versions);

}  // namespace gpuprof::elfgate

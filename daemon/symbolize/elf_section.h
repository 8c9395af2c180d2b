// SPDX-License-Identifier: Apache-2.0
//
// Sections of an ELF file by name.
#pragma once

#include <gelf.h>
#include <libelf.h>

#include <algorithm>
#include <initializer_list>
#include <string_view>

namespace gpuprof::symbolize {

// The first section that has one of `names`; null if there is none.
[[nodiscard]] inline Elf_Scn* section_named(Elf* elf,
                                            std::initializer_list<std::string_view> names) {
  size_t strings = 0;
  if (elf_getshdrstrndx(elf, &strings) != 0) return nullptr;
  for (Elf_Scn* scn = nullptr; (scn = elf_nextscn(elf, scn)) != nullptr;) {
    GElf_Shdr header;
    if (gelf_getshdr(scn, &header) == nullptr) continue;
    const char* name = elf_strptr(elf, strings, header.sh_name);
    if (name != nullptr && std::find(names.begin(), names.end(), name) != names.end()) return scn;
  }
  return nullptr;
}

}  // namespace gpuprof::symbolize

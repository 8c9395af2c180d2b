// SPDX-License-Identifier: Apache-2.0
//
// Makes the smallest ELF file that has call frame information, for machines and errors that no
// compiler here produces.
#pragma once

#include <elf.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace gpuprof::unwind::test {

using Bytes = std::vector<uint8_t>;

inline void put(Bytes& out, uint64_t value, unsigned size) {
  for (unsigned i = 0; i < size; ++i) out.push_back(static_cast<uint8_t>(value >> (8 * i)));
}

// One CIE and one FDE in .debug_frame's or .eh_frame's format (DWARF 5, 6.4.1), absolute addresses.
// For .eh_frame the CIE's id is 0 and pointers are absolute because there is no augmentation.
inline Bytes eh_frame(uint8_t ra_register, int8_t data_alignment, const Bytes& cie_program,
                      uint64_t start, uint64_t length, const Bytes& fde_program) {
  Bytes out;
  auto entry = [&](Bytes body) {
    while (body.size() % 8 != 4) body.push_back(0);  // DW_CFA_nop
    put(out, body.size(), 4);
    out.insert(out.end(), body.begin(), body.end());
  };
  Bytes cie;
  put(cie, 0, 4);
  cie.insert(cie.end(), {1, 0, 1, static_cast<uint8_t>(data_alignment & 0x7f), ra_register});
  cie.insert(cie.end(), cie_program.begin(), cie_program.end());
  entry(cie);
  Bytes fde;
  put(fde, out.size() + 4, 4);  // distance back to the CIE
  put(fde, start, 8);
  put(fde, length, 8);
  fde.insert(fde.end(), fde_program.begin(), fde_program.end());
  entry(fde);
  put(out, 0, 4);
  return out;
}

struct Section {
  std::string name;
  Bytes bytes;
  uint32_t type = SHT_PROGBITS;
  uint64_t flags = SHF_ALLOC;
};

// Where elf_file() puts its first section, in the file and in memory.
inline constexpr uint64_t kSectionsStart = sizeof(Elf64_Ehdr) + sizeof(Elf64_Phdr);

// A shared object with one executable segment [0, 0x10000) and these sections, at their file
// offsets in memory, one after the other.
inline Bytes elf_file(uint16_t machine, std::vector<Section> sections) {
  Elf64_Ehdr header = {};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_VERSION] = EV_CURRENT;
  header.e_type = ET_DYN;
  header.e_machine = machine;
  header.e_version = EV_CURRENT;
  header.e_ehsize = sizeof(Elf64_Ehdr);
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_phnum = 1;
  header.e_phoff = sizeof header;
  header.e_shentsize = sizeof(Elf64_Shdr);
  Elf64_Phdr load = {};
  load.p_type = PT_LOAD;
  load.p_flags = PF_R | PF_X;
  load.p_filesz = load.p_memsz = 0x10000;
  Bytes names(1);
  sections.push_back({".shstrtab", {}, SHT_STRTAB, 0});
  std::vector<Elf64_Shdr> table(1);
  Bytes out(kSectionsStart);
  for (Section& section : sections) {
    Elf64_Shdr& entry = table.emplace_back();
    entry.sh_name = static_cast<uint32_t>(names.size());
    names.insert(names.end(), section.name.begin(), section.name.end());
    names.push_back(0);
    if (&section == &sections.back()) section.bytes = names;
    entry.sh_type = section.type;
    entry.sh_flags = section.flags;
    entry.sh_addr = entry.sh_offset = out.size();
    entry.sh_size = section.bytes.size();
    entry.sh_addralign = 1;
    out.insert(out.end(), section.bytes.begin(), section.bytes.end());
  }
  header.e_shnum = static_cast<uint16_t>(table.size());
  header.e_shstrndx = static_cast<uint16_t>(table.size() - 1);
  out.resize((out.size() + 7) & ~size_t{7});
  header.e_shoff = out.size();
  const auto* const entries = reinterpret_cast<const uint8_t*>(table.data());
  out.insert(out.end(), entries, entries + table.size() * sizeof table[0]);
  std::memcpy(out.data(), &header, sizeof header);
  std::memcpy(out.data() + sizeof header, &load, sizeof load);
  return out;
}

inline Bytes elf_file(uint16_t machine, const Bytes& frames) {
  return elf_file(machine, std::vector<Section>{{".eh_frame", frames}});
}

}  // namespace gpuprof::unwind::test

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

// A shared object with one executable segment [0, 0x10000) and the section .eh_frame.
inline Bytes elf_file(uint16_t machine, const Bytes& frames) {
  const std::string names("\0.eh_frame\0.shstrtab\0", 21);
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
  header.e_shnum = 3;
  header.e_shstrndx = 2;
  Elf64_Phdr load = {};
  load.p_type = PT_LOAD;
  load.p_flags = PF_R | PF_X;
  load.p_filesz = load.p_memsz = 0x10000;
  const uint64_t frames_at = sizeof header + sizeof load;
  const uint64_t names_at = frames_at + frames.size();
  header.e_shoff = (names_at + names.size() + 7) & ~uint64_t{7};
  Elf64_Shdr sections[3] = {};
  sections[1].sh_name = 1;
  sections[1].sh_type = SHT_PROGBITS;
  sections[1].sh_flags = SHF_ALLOC;
  sections[1].sh_addr = sections[1].sh_offset = frames_at;
  sections[1].sh_size = frames.size();
  sections[1].sh_addralign = 8;
  sections[2].sh_name = 11;
  sections[2].sh_type = SHT_STRTAB;
  sections[2].sh_offset = names_at;
  sections[2].sh_size = names.size();
  sections[2].sh_addralign = 1;
  Bytes out(header.e_shoff + sizeof sections);
  std::memcpy(out.data(), &header, sizeof header);
  std::memcpy(out.data() + sizeof header, &load, sizeof load);
  std::copy(frames.begin(), frames.end(), out.begin() + static_cast<ptrdiff_t>(frames_at));
  std::memcpy(out.data() + names_at, names.data(), names.size());
  std::memcpy(out.data() + header.e_shoff, sections, sizeof sections);
  return out;
}

}  // namespace gpuprof::unwind::test

// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/cubin/cubin_writer.h"

#include <elf.h>

#include <algorithm>
#include <cstring>

namespace gpuprof::cubin::test {
namespace {

// What nvcc writes into its headers.
constexpr int kLineBase = -5;
constexpr int kLineRange = 14;
constexpr int kOpcodeBase = 10;

template <class T>
std::string as_bytes(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

std::string uleb_bytes(uint64_t value) {
  std::string bytes;
  do {
    const auto low = static_cast<char>(value & 0x7f);
    value >>= 7;
    bytes += static_cast<char>(value != 0 ? low | 0x80 : low);
  } while (value != 0);
  return bytes;
}

}  // namespace

void LineProgram::uleb(uint64_t value) { bytes_ += uleb_bytes(value); }

void LineProgram::sleb(int64_t value) {
  for (;;) {
    const auto low = static_cast<uint8_t>(value & 0x7f);
    value >>= 7;
    const bool last = (value == 0 && (low & 0x40) == 0) || (value == -1 && (low & 0x40) != 0);
    byte(last ? low : low | 0x80);
    if (last) return;
  }
}

void LineProgram::advance_pc(uint64_t bytes) {
  if (bytes == 0) return;
  byte(2);
  uleb(bytes);
}

void LineProgram::row(uint64_t address, uint32_t line) {
  const uint64_t advance = address - address_;
  const int64_t delta = static_cast<int64_t>(line) - line_;
  address_ = address;
  line_ = line;
  if (delta >= kLineBase && delta < kLineBase + kLineRange) {
    const uint64_t opcode = delta - kLineBase + kLineRange * advance + kOpcodeBase;
    if (advance < 256 && opcode <= 255) {
      byte(static_cast<uint8_t>(opcode));
      ++rows_;
      return;
    }
  }
  if (delta != 0) {
    byte(3);
    sleb(delta);
  }
  advance_pc(advance);
  copy();
}

void LineProgram::set_file(uint64_t file) {
  byte(4);
  uleb(file);
}

void LineProgram::inlined_call(uint64_t context, uint64_t function) {
  const std::string operands = uleb_bytes(context) + uleb_bytes(function);
  byte(0);
  uleb(operands.size() + 1);
  byte(0x90);
  raw(operands);
}

void LineProgram::end_sequence(uint64_t end) {
  advance_pc(end - address_);
  raw(std::string_view("\0\1\1", 3));
  address_ = 0;
  line_ = 1;
  rows_ = 0;
}

void LineProgram::set_address(size_t symbol) {
  raw(std::string_view("\0\11\2", 3));
  operands_.push_back({bytes_.size(), symbol});
  raw(std::string(8, '\0'));
  address_ = 0;
}

size_t CubinWriter::text(std::string_view function, uint64_t size_bytes) {
  texts_.push_back({".text." + std::string(function), size_bytes, ""});
  return texts_.size() - 1;
}

void CubinWriter::code(size_t text, uint64_t offset, std::string_view bytes) {
  std::string& code = texts_[text].code;
  code.resize(std::max<size_t>(code.size(), offset + bytes.size()));
  code.replace(offset, bytes.size(), bytes);
}

size_t CubinWriter::symbol(std::string_view name, size_t text, uint64_t offset, uint64_t size_bytes,
                           bool is_kernel, bool is_local) {
  symbols_.push_back({std::string(name), text, offset, size_bytes, is_kernel, is_local});
  return symbols_.size();  // symbol 0 is the empty one
}

size_t CubinWriter::kernel(std::string_view name, uint64_t size_bytes) {
  return symbol(name, text(name, size_bytes), 0, size_bytes, true);
}

uint64_t CubinWriter::string(std::string_view text) {
  const uint64_t offset = debug_str_.size();
  debug_str_ += text;
  debug_str_ += '\0';
  return offset;
}

void CubinWriter::unit(const LineProgram& program, const std::vector<std::string>& files) {
  std::string tables("\0\1\1\1\1\0\0\0\1", 9);  // operand counts of opcodes 1 to 9
  tables += std::string("/src\0\0", 6);
  for (const std::string& file : files) tables += file + std::string("\0\1\0\0", 4);
  tables += '\0';
  tables += std::string(4, '\0');  // base of the names in .debug_str
  std::string header = std::string("\1\1", 2) + static_cast<char>(kLineBase) +
                       static_cast<char>(kLineRange) + static_cast<char>(kOpcodeBase) + tables;
  const auto length = static_cast<uint32_t>(2 + 4 + header.size() + program.bytes().size());
  debug_line_ += as_bytes(length) + as_bytes(uint16_t{2}) +
                 as_bytes(static_cast<uint32_t>(header.size())) + header;
  const uint64_t program_start = debug_line_.size();
  for (const LineProgram::Operand& operand : program.operands()) {
    relocations_.push_back(
        {program_start + operand.offset, static_cast<uint32_t>(operand.symbol), 0});
  }
  debug_line_ += program.bytes();
}

std::string CubinWriter::entries_of(const std::vector<Relocation>& relocations) const {
  std::string entries;
  for (const Relocation& relocation : relocations) {
    Elf64_Rela entry{relocation.operand, ELF64_R_INFO(uint64_t{relocation.symbol}, 2u),
                     relocation.addend};
    entries += as_bytes(entry).substr(0, rel_ ? sizeof(Elf64_Rel) : sizeof(Elf64_Rela));
  }
  return entries;
}

std::vector<std::byte> CubinWriter::finish() const {
  std::string file(sizeof(Elf64_Ehdr), '\0');
  std::string names(1, '\0');
  std::vector<Elf64_Shdr> sections(1);
  const auto add = [&](const std::string& name, uint32_t type, uint64_t flags,
                       const std::string& content) -> Elf64_Shdr& {
    Elf64_Shdr& section = sections.emplace_back();
    section.sh_name = static_cast<uint32_t>(names.size());
    names += name + '\0';
    section.sh_type = type;
    section.sh_flags = flags;
    section.sh_offset = file.size();
    section.sh_size = content.size();
    file += content;
    return section;
  };

  for (const Text& text : texts_) {
    add(text.name, SHT_PROGBITS, SHF_ALLOC | SHF_EXECINSTR,
        text.code + std::string(text.size_bytes - text.code.size(), '\0'));
  }
  std::string symbol_names(1, '\0');
  std::string symbols(sizeof(Elf64_Sym), '\0');
  std::string section_indices(sizeof(uint32_t), '\0');
  for (const Symbol& symbol : symbols_) {
    Elf64_Sym entry{};
    entry.st_name = static_cast<uint32_t>(symbol_names.size());
    symbol_names += symbol.name + '\0';
    entry.st_info = ELF64_ST_INFO(symbol.is_local ? STB_LOCAL : STB_GLOBAL, STT_FUNC);
    entry.st_other = symbol.is_kernel ? 0x10 : 0;
    const auto section = static_cast<uint32_t>(symbol.text + 1);
    entry.st_shndx = static_cast<uint16_t>(section < SHN_LORESERVE ? section : SHN_XINDEX);
    section_indices += as_bytes(section);
    entry.st_value = symbol.offset;
    entry.st_size = symbol.size_bytes;
    symbols += as_bytes(entry);
  }
  add(".strtab", SHT_STRTAB, 0, symbol_names);
  const auto strtab = static_cast<uint32_t>(sections.size() - 1);
  Elf64_Shdr& symtab = add(".symtab", SHT_SYMTAB, 0, symbols);
  symtab.sh_link = strtab;
  symtab.sh_entsize = sizeof(Elf64_Sym);
  const auto symtab_index = static_cast<uint32_t>(sections.size() - 1);
  if (texts_.size() >= SHN_LORESERVE) add(".symtab_shndx", SHT_SYMTAB_SHNDX, 0, section_indices);
  const auto add_relocations = [&](const std::string& name, uint32_t target,
                                   const std::vector<Relocation>& relocations) {
    // add() may move what it returned before.
    Elf64_Shdr& section = add((rel_ ? ".rel" : ".rela") + name, rel_ ? SHT_REL : SHT_RELA,
                              SHF_INFO_LINK, entries_of(relocations));
    section.sh_link = symtab_index;
    section.sh_info = target;
    section.sh_entsize = rel_ ? sizeof(Elf64_Rel) : sizeof(Elf64_Rela);
  };
  const auto references_from = [&](std::optional<size_t> text) {
    std::vector<Relocation> found;
    for (const Reference& each : references_) {
      if (each.from_text == text) found.push_back(each.relocation);
    }
    return found;
  };
  if (!debug_line_.empty()) {
    add(".debug_line", SHT_PROGBITS, 0, debug_line_);
    const auto line_index = static_cast<uint32_t>(sections.size() - 1);
    add_relocations(".debug_line", line_index, relocations_);
  }
  for (size_t text = 0; text < texts_.size(); ++text) {
    if (const auto from = references_from(text); !from.empty())
      add_relocations(texts_[text].name, static_cast<uint32_t>(text + 1), from);
  }
  if (const auto from = references_from(std::nullopt); !from.empty()) {
    add(".nv.constant4", SHT_PROGBITS, SHF_ALLOC, std::string(64, '\0'));
    add_relocations(".nv.constant4", static_cast<uint32_t>(sections.size() - 1), from);
  }
  if (!debug_str_.empty()) add(".debug_str", SHT_PROGBITS, 0, debug_str_);
  // Its own name must be in it.
  const std::string all_names = names + ".shstrtab" + '\0';
  add(".shstrtab", SHT_STRTAB, 0, all_names);

  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_VERSION] = EV_CURRENT;
  header.e_ident[EI_OSABI] = 0x41;
  header.e_ident[EI_ABIVERSION] = 8;
  header.e_type = ET_EXEC;
  header.e_machine = 190;
  header.e_version = EV_CURRENT;
  header.e_flags = 0x0a000004 | sm_ << 8;
  header.e_shoff = file.size();
  header.e_ehsize = sizeof(Elf64_Ehdr);
  header.e_shentsize = sizeof(Elf64_Shdr);
  if (sections.size() < SHN_LORESERVE) {
    header.e_shnum = static_cast<uint16_t>(sections.size());
    header.e_shstrndx = static_cast<uint16_t>(sections.size() - 1);
  } else {
    sections[0].sh_size = sections.size();
    sections[0].sh_link = static_cast<uint32_t>(sections.size() - 1);
    header.e_shstrndx = SHN_XINDEX;
  }
  std::memcpy(file.data(), &header, sizeof(header));
  for (const Elf64_Shdr& section : sections) file += as_bytes(section);
  const auto* const bytes = reinterpret_cast<const std::byte*>(file.data());
  return {bytes, bytes + file.size()};
}

}  // namespace gpuprof::cubin::test

// SPDX-License-Identifier: Apache-2.0
#include "daemon/cubin/elf_image.h"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

namespace gpuprof::cubin {
namespace {

constexpr uint16_t kMachineCuda = 190;
// st_other of a __global__ function; ptxas writes it, readelf prints it as "<other>: 10".
constexpr uint8_t kStoCudaEntry = 0x10;
constexpr uint32_t kNoText = UINT32_MAX;
static_assert(kNoText == CodeReference::kData);

// Names may share bytes, so many long ones can be claimed by few bytes. Real images use less than
// one byte of names per byte of file.
constexpr uint64_t kNameBytesPerByte = 4;
constexpr uint64_t kNameBytesFree = 64 * 1024;

template <class T>
T load(std::span<const std::byte> bytes, uint64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

class Parser {
 public:
  explicit Parser(std::span<const std::byte> bytes)
      : bytes_(bytes), name_bytes_left_(bytes.size() * kNameBytesPerByte + kNameBytesFree) {}

  Result<ElfImage> run() {
    image_.file_bytes = bytes_.size();
    if (auto status = header(); !status) return tl::unexpected(status.error());
    if (auto status = section_table(); !status) return tl::unexpected(status.error());
    if (auto status = text_and_debug_sections(); !status) return tl::unexpected(status.error());
    if (auto status = symbols(); !status) return tl::unexpected(status.error());
    if (auto status = line_relocations(); !status) return tl::unexpected(status.error());
    code_references();
    return std::move(image_);
  }

 private:
  Status header() {
    if (bytes_.size() < sizeof(Elf64_Ehdr) || std::memcmp(bytes_.data(), ELFMAG, SELFMAG) != 0) {
      return fail(Code::kUnsupported, "not an ELF file");
    }
    header_ = load<Elf64_Ehdr>(bytes_, 0);
    if (header_.e_ident[EI_CLASS] != ELFCLASS64 || header_.e_ident[EI_DATA] != ELFDATA2LSB ||
        header_.e_machine != kMachineCuda) {
      return fail(Code::kUnsupported, "not a cubin: its ELF machine is " +
                                          std::to_string(header_.e_machine) + ", a cubin's is 190");
    }
    // Offsets are kept in 32 bits further on; the largest known cubins have some 300 MB.
    if (bytes_.size() > UINT32_MAX) return fail(Code::kUnsupported, "larger than 4 GiB");
    image_.abi_version = header_.e_ident[EI_ABIVERSION];
    // ABI 8 (CUDA 13) moved the architecture up by a byte: 0x5a04 is sm_90, 0x5a was before.
    image_.sm = (image_.abi_version >= 8 ? header_.e_flags >> 8 : header_.e_flags) & 0xff;
    return {};
  }

  Status section_table() {
    const uint64_t size = bytes_.size();
    if (header_.e_shoff == 0) return fail(Code::kCorrupt, "it has no section table");
    if (header_.e_shentsize != sizeof(Elf64_Shdr) || header_.e_shoff > size ||
        size - header_.e_shoff < sizeof(Elf64_Shdr)) {
      return fail(Code::kCorrupt, "its section table lies past its end");
    }
    const auto first = load<Elf64_Shdr>(bytes_, header_.e_shoff);
    const uint64_t count = header_.e_shnum != 0 ? header_.e_shnum : first.sh_size;
    names_index_ = header_.e_shstrndx != SHN_XINDEX ? header_.e_shstrndx : first.sh_link;
    if (count > (size - header_.e_shoff) / sizeof(Elf64_Shdr)) {
      return fail(Code::kCorrupt, "its section table lies past its end");
    }
    sections_.resize(count);
    if (count != 0) {
      std::memcpy(sections_.data(), bytes_.data() + header_.e_shoff, count * sizeof(Elf64_Shdr));
    }
    for (uint64_t i = 1; i < count; ++i) {
      const Elf64_Shdr& section = sections_[i];
      if (section.sh_type == SHT_NOBITS || section.sh_type == SHT_NULL) continue;
      if (section.sh_offset > size || section.sh_size > size - section.sh_offset) {
        return fail(Code::kCorrupt, "section " + std::to_string(i) + " lies past the file's end");
      }
    }
    // Nothing is read there, but nvcc's files end with them: a file cut short is refused.
    if (header_.e_phoff > size || header_.e_phnum * sizeof(Elf64_Phdr) > size - header_.e_phoff) {
      return fail(Code::kCorrupt, "its program headers lie past its end");
    }
    // Section 0 has no bounds to check: it stands for none.
    if (names_index_ == 0 || names_index_ >= count ||
        sections_[names_index_].sh_type != SHT_STRTAB) {
      return fail(Code::kCorrupt, "it has no section names");
    }
    return {};
  }

  [[nodiscard]] std::span<const std::byte> content(const Elf64_Shdr& section) const {
    if (section.sh_offset > bytes_.size() || section.sh_size > bytes_.size() - section.sh_offset) {
      return {};
    }
    return bytes_.subspan(section.sh_offset, section.sh_size);
  }

  [[nodiscard]] bool section_name_starts(const Elf64_Shdr& section, std::string_view prefix) const {
    const auto names = content(sections_[names_index_]);
    return section.sh_name < names.size() && names.size() - section.sh_name >= prefix.size() &&
           std::memcmp(names.data() + section.sh_name, prefix.data(), prefix.size()) == 0;
  }

  [[nodiscard]] bool section_name_is(const Elf64_Shdr& section, std::string_view name) const {
    return section_name_starts(section, {name.data(), name.size() + 1});  // of a literal, with NUL
  }

  // nullopt: outside the table, without an end, or more names than the file can be meant to have.
  std::optional<std::string_view> name_at(std::span<const std::byte> table, uint64_t offset) {
    if (offset >= table.size()) return std::nullopt;
    const auto* const text = reinterpret_cast<const char*>(table.data()) + offset;
    const uint64_t limit = std::min<uint64_t>(table.size() - offset, name_bytes_left_);
    const size_t length = ::strnlen(text, limit);
    name_bytes_left_ -= length;
    if (length == limit) return std::nullopt;
    return std::string_view(text, length);
  }

  Status text_and_debug_sections() {
    text_of_section_.assign(sections_.size(), kNoText);
    const auto names = content(sections_[names_index_]);
    for (uint32_t i = 1; i < sections_.size(); ++i) {
      const Elf64_Shdr& section = sections_[i];
      if (section.sh_type != SHT_PROGBITS || (section.sh_flags & SHF_COMPRESSED) != 0) continue;
      if ((section.sh_flags & SHF_EXECINSTR) != 0 && section_name_starts(section, ".text.")) {
        const auto name = name_at(names, section.sh_name);
        if (!name) return fail(Code::kCorrupt, "section " + std::to_string(i) + " has no name");
        text_of_section_[i] = static_cast<uint32_t>(image_.texts.size());
        image_.texts.push_back({i, name->substr(6), section.sh_size, content(section)});
      } else if (debug_line_index_ == 0 && section_name_is(section, ".debug_line")) {
        debug_line_index_ = i;
        image_.debug_line = content(section);
      } else if (image_.debug_str.empty() && section_name_is(section, ".debug_str")) {
        image_.debug_str = content(section);
      }
    }
    return {};
  }

  // The text section of a symbol; kNoText if it is elsewhere.
  [[nodiscard]] uint32_t text_of(const Elf64_Sym& symbol, uint64_t index) const {
    uint32_t section = symbol.st_shndx;
    if (section == SHN_XINDEX) {
      if (index >= extended_.size() / sizeof(uint32_t)) return kNoText;
      section = load<uint32_t>(extended_, index * sizeof(uint32_t));
    } else if (section >= SHN_LORESERVE) {
      return kNoText;  // absolute, common
    }
    return section < text_of_section_.size() ? text_of_section_[section] : kNoText;
  }

  Status symbols() {
    for (uint32_t i = 1; i < sections_.size(); ++i) {
      if (sections_[i].sh_type == SHT_SYMTAB && symtab_index_ == 0) symtab_index_ = i;
      if (sections_[i].sh_type == SHT_SYMTAB_SHNDX) extended_ = content(sections_[i]);
    }
    if (symtab_index_ == 0) return fail(Code::kCorrupt, "it has no symbol table");
    const Elf64_Shdr& table = sections_[symtab_index_];
    if (table.sh_entsize != sizeof(Elf64_Sym) || table.sh_link == 0 ||
        table.sh_link >= sections_.size() || sections_[table.sh_link].sh_type != SHT_STRTAB) {
      return fail(Code::kCorrupt, "its symbol table is malformed");
    }
    symtab_ = content(table);
    const auto names = content(sections_[table.sh_link]);
    for (uint64_t i = 0; i < symtab_.size() / sizeof(Elf64_Sym); ++i) {
      const auto symbol = load<Elf64_Sym>(symtab_, i * sizeof(Elf64_Sym));
      if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC) continue;
      const uint32_t text = text_of(symbol, i);
      if (text == kNoText) continue;  // undefined: an image that was not linked
      const auto name = name_at(names, symbol.st_name);
      if (!name) return fail(Code::kCorrupt, "symbol " + std::to_string(i) + " has no name");
      const uint64_t section_size = image_.texts[text].size_bytes;
      if (symbol.st_value > section_size || symbol.st_size > section_size - symbol.st_value) {
        return fail(Code::kCorrupt,
                    "symbol " + std::to_string(i) + " lies past the end of its section");
      }
      image_.functions.push_back(
          {*name, text, symbol.st_value, symbol.st_size, (symbol.st_other & kStoCudaEntry) != 0});
    }
    return {};
  }

  Status line_relocations() {
    if (debug_line_index_ == 0) return {};
    bool found = false;
    for (uint32_t i = 1; i < sections_.size(); ++i) {
      const Elf64_Shdr& section = sections_[i];
      const bool rela = section.sh_type == SHT_RELA;
      if ((!rela && section.sh_type != SHT_REL) || section.sh_info != debug_line_index_) continue;
      const size_t entry_size = rela ? sizeof(Elf64_Rela) : sizeof(Elf64_Rel);
      if (section.sh_entsize != entry_size || section.sh_link != symtab_index_) {
        return fail(Code::kCorrupt, "the line table's relocations are malformed");
      }
      // Sections may overlap: any number of headers over the same bytes would cost memory each.
      if (std::exchange(found, true)) {
        return fail(Code::kCorrupt, "the line table has relocations twice");
      }
      const auto entries = content(section);
      for (uint64_t at = 0; at + entry_size <= entries.size(); at += entry_size) {
        Elf64_Rela entry{};
        std::memcpy(&entry, entries.data() + at, entry_size);
        if (auto status = relocate(entry, !rela); !status) return status;
      }
    }
    std::stable_sort(image_.line_addresses.begin(), image_.line_addresses.end(),
                     [](const auto& a, const auto& b) { return a.operand < b.operand; });
    return {};
  }

  Status relocate(const Elf64_Rela& entry, bool adds_stored_value) {
    const uint64_t index = ELF64_R_SYM(entry.r_info);
    if (index >= symtab_.size() / sizeof(Elf64_Sym)) {
      return fail(Code::kCorrupt, "a relocation of the line table refers to no symbol");
    }
    const auto symbol = load<Elf64_Sym>(symtab_, index * sizeof(Elf64_Sym));
    const uint32_t text = text_of(symbol, index);
    if (text == kNoText) return {};  // code that is not in this image: its lines are dropped
    const uint64_t offset = symbol.st_value + static_cast<uint64_t>(entry.r_addend);
    if (offset > image_.texts[text].size_bytes) {
      return fail(Code::kCorrupt,
                  "a relocation of the line table lies past its function's section");
    }
    image_.line_addresses.push_back({entry.r_offset, text, offset, adds_stored_value});
    return {};
  }

  void code_references() {
    uint64_t left = bytes_.size();
    const auto spend = [&left](uint64_t bytes) {
      if (bytes > left) return false;
      left -= bytes;
      return true;
    };
    for (const TextSection& text : image_.texts) {
      if (!spend(text.size_bytes)) return;
    }
    std::vector<uint32_t> functions(image_.texts.size());
    for (const FunctionSymbol& function : image_.functions) ++functions[function.text];
    std::vector<CodeReference> references;
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type != SHT_RELA && section.sh_type != SHT_REL) continue;
      if (section.sh_size == 0 || !is_loaded(section.sh_info)) continue;
      if (!spend(section.sh_size) || !add_references(section, functions, references)) return;
    }
    std::ranges::sort(references, {}, [](const CodeReference& each) {
      return std::tuple(each.to_text, each.from_text, each.from_offset);
    });
    image_.code_references = std::move(references);
  }

  [[nodiscard]] bool is_loaded(uint64_t section) const {
    return section >= sections_.size() || (sections_[section].sh_flags & SHF_ALLOC) != 0;
  }

  // False: malformed.
  bool add_references(const Elf64_Shdr& section, const std::vector<uint32_t>& functions,
                      std::vector<CodeReference>& to) const {
    const bool rela = section.sh_type == SHT_RELA;
    const size_t entry_size = rela ? sizeof(Elf64_Rela) : sizeof(Elf64_Rel);
    if (section.sh_entsize != entry_size || section.sh_link != symtab_index_) return false;
    const uint32_t from =
        section.sh_info < sections_.size() ? text_of_section_[section.sh_info] : kNoText;
    const auto entries = content(section);
    for (uint64_t at = 0; at + entry_size <= entries.size(); at += entry_size) {
      Elf64_Rela entry{};
      std::memcpy(&entry, entries.data() + at, entry_size);
      const uint64_t index = ELF64_R_SYM(entry.r_info);
      if (index >= symtab_.size() / sizeof(Elf64_Sym)) return false;
      const auto symbol = load<Elf64_Sym>(symtab_, index * sizeof(Elf64_Sym));
      const uint32_t text = text_of(symbol, index);
      if (text == kNoText || functions[text] < 2) continue;
      to.push_back({text, from, entry.r_offset,
                    symbol.st_value + static_cast<uint64_t>(entry.r_addend), !rela});
    }
    return true;
  }

  std::span<const std::byte> bytes_;
  uint64_t name_bytes_left_;
  Elf64_Ehdr header_{};
  std::vector<Elf64_Shdr> sections_;
  std::vector<uint32_t> text_of_section_;
  uint64_t names_index_ = 0;
  uint32_t debug_line_index_ = 0;
  uint32_t symtab_index_ = 0;
  std::span<const std::byte> symtab_;
  std::span<const std::byte> extended_;
  ElfImage image_;
};

}  // namespace

Result<ElfImage> ElfImage::parse(std::span<const std::byte> bytes) { return Parser(bytes).run(); }

}  // namespace gpuprof::cubin

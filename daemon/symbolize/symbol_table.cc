// SPDX-License-Identifier: Apache-2.0
#include "daemon/symbolize/symbol_table.h"

#include <gelf.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "daemon/symbolize/demangle.h"

namespace gpuprof::symbolize {
namespace {

// How far to look back for an enclosing symbol when the nearest one ended before the address.
constexpr int kMaxEnclosing = 32;

constexpr uint8_t kSized = 8;  // bit of a rank

bool is_code(Elf* elf, size_t section) {
  GElf_Shdr header;
  Elf_Scn* scn = elf_getscn(elf, section);
  return scn != nullptr && gelf_getshdr(scn, &header) != nullptr &&
         (header.sh_flags & SHF_EXECINSTR) != 0;
}

uint8_t rank_of(const GElf_Sym& sym) {
  const unsigned char bind = GELF_ST_BIND(sym.st_info);
  const uint8_t by_binding = bind == STB_LOCAL ? 0 : bind == STB_WEAK ? 1 : 2;
  const bool is_label = GELF_ST_TYPE(sym.st_info) == STT_NOTYPE;
  return static_cast<uint8_t>((sym.st_size != 0 ? kSized : 0) + (is_label ? 0 : 4) + by_binding);
}

}  // namespace

SymbolTable::SymbolTable(Elf* elf) : elf_(elf) {
  for (Elf_Scn* scn = nullptr; (scn = elf_nextscn(elf, scn)) != nullptr;) {
    GElf_Shdr header;
    if (gelf_getshdr(scn, &header) == nullptr) continue;
    if ((header.sh_flags & SHF_EXECINSTR) != 0) {
      code_ends_.push_back(header.sh_addr + header.sh_size);
    }
    if (header.sh_type == SHT_SYMTAB || header.sh_type == SHT_DYNSYM) read_section(scn);
  }
  sort_and_close();
}

void SymbolTable::read_section(Elf_Scn* section) {
  GElf_Shdr header;
  Elf_Data* data = elf_getdata(section, nullptr);
  if (data == nullptr || gelf_getshdr(section, &header) == nullptr || header.sh_entsize == 0)
    return;
  if (string_sections_.size() >= kMaxStringSections) return;
  const uint64_t strings = string_sections_.size();
  string_sections_.push_back(header.sh_link);
  // Consecutive symbols mostly share their section.
  size_t checked_section = 0;
  bool checked_code = false;
  const size_t count = data->d_size / sizeof(Elf64_Sym);
  // At once: what growing leaves behind would be more than the table.
  entries_.reserve(entries_.size() + std::min(count, kMaxSymbols - entries_.size()));
  for (size_t i = 0; i < count && entries_.size() < kMaxSymbols; ++i) {
    GElf_Sym sym;
    if (gelf_getsym(data, static_cast<int>(i), &sym) == nullptr) break;
    const unsigned char type = GELF_ST_TYPE(sym.st_info);
    if (type != STT_FUNC && type != STT_GNU_IFUNC && type != STT_NOTYPE) continue;
    if (sym.st_shndx == SHN_UNDEF || sym.st_name == 0 || sym.st_value >= kMaxAddress) continue;
    // Local labels: aarch64's $x and $d, and assembly that the compiler did not strip.
    if (type == STT_NOTYPE && GELF_ST_BIND(sym.st_info) == STB_LOCAL) continue;
    if (sym.st_shndx < SHN_LORESERVE) {
      if (sym.st_shndx != checked_section) {
        checked_section = sym.st_shndx;
        checked_code = is_code(elf_, checked_section);
      }
      if (!checked_code) continue;
    } else if (type == STT_NOTYPE || sym.st_shndx != SHN_XINDEX) {
      continue;
    }
    const uint64_t length = std::min<uint64_t>(sym.st_size, std::numeric_limits<uint32_t>::max());
    entries_.push_back({.address = sym.st_value & (kMaxAddress - 1),
                        .rank = rank_of(sym) & 15u,
                        .strings = strings & (kMaxStringSections - 1),
                        .length = static_cast<uint32_t>(length),
                        .name = sym.st_name});
  }
}

void SymbolTable::sort_and_close() {
  std::sort(code_ends_.begin(), code_ends_.end());
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    if (a.address != b.address) return a.address < b.address;
    if (a.rank != b.rank) return a.rank > b.rank;
    return a.strings != b.strings ? a.strings < b.strings : a.name < b.name;
  });
  const auto last =
      std::unique(entries_.begin(), entries_.end(),
                  [](const Entry& a, const Entry& b) { return a.address == b.address; });
  entries_.erase(last, entries_.end());
  if (entries_.size() < entries_.capacity() / 4 * 3) entries_.shrink_to_fit();
  for (size_t i = 0; i < entries_.size(); ++i) {
    Entry& e = entries_[i];
    if (e.length != 0) continue;
    uint64_t end = i + 1 < entries_.size() ? entries_[i + 1].address : e.address;
    const auto section = std::upper_bound(code_ends_.begin(), code_ends_.end(), e.address);
    if (section != code_ends_.end() && (end == e.address || *section < end)) end = *section;
    e.length = static_cast<uint32_t>(
        std::min<uint64_t>(end - e.address, std::numeric_limits<uint32_t>::max()));
  }
}

// A sized symbol around an unsized label (an entry point in hand-written assembly) goes first.
std::optional<Symbol> SymbolTable::find(uint64_t address) const {
  auto it = std::upper_bound(entries_.begin(), entries_.end(), address,
                             [](uint64_t at, const Entry& e) { return at < e.address; });
  const Entry* hit = nullptr;
  for (int back = 0; it != entries_.begin() && back < kMaxEnclosing; ++back) {
    --it;
    if (address - it->address >= it->length) continue;
    if (hit == nullptr) hit = &*it;
    if ((it->rank & kSized) == 0) continue;
    hit = &*it;
    break;
  }
  if (hit == nullptr) return std::nullopt;
  const char* name = elf_strptr(elf_, string_sections_[hit->strings], hit->name);
  if (name == nullptr) return std::nullopt;
  std::string text(name, strnlen(name, kMaxMangledBytes));
  // Some linkers write "name@@VERSION" into .symtab.
  if (const size_t at = text.find('@'); at != std::string::npos && at != 0) text.resize(at);
  if (text.empty()) return std::nullopt;
  return Symbol{std::move(text), hit->address, hit->address + hit->length};
}

}  // namespace gpuprof::symbolize

// SPDX-License-Identifier: Apache-2.0
//
// SymbolTable: the functions of one ELF file, sorted by address.
#pragma once

#include <libelf.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gpuprof::symbolize {

struct Symbol {
  std::string name;  // as in the table, without a version
  uint64_t address = 0;
  uint64_t end = 0;
};

// From .symtab and .dynsym: functions, and unsized labels in code up to the next symbol. Of several
// at one address: sized before unsized, then global, weak, local. Names stay in the file.
// Memory: 16 bytes a symbol, at most kMaxSymbols. Addresses of 2^48 and more, which no user process
// has, are left out.
class SymbolTable {
 public:
  static constexpr size_t kMaxSymbols = size_t{4} << 20;

  // `elf` must outlive the table.
  explicit SymbolTable(Elf* elf);

  // The symbol that `address` lies in; never the nearest one.
  [[nodiscard]] std::optional<Symbol> find(uint64_t address) const;
  [[nodiscard]] size_t size() const { return entries_.size(); }
  [[nodiscard]] size_t bytes() const { return entries_.capacity() * sizeof(Entry); }

 private:
  static constexpr uint64_t kMaxAddress = uint64_t{1} << 48;
  static constexpr size_t kMaxStringSections = 1 << 12;
  struct Entry {
    uint64_t address : 48;
    uint64_t rank : 4;      // higher is preferred
    uint64_t strings : 12;  // index of the string section in string_sections_
    uint32_t length;        // 0: unsized, to be ended by the next symbol
    uint32_t name;          // offset in the string section
  };
  static_assert(sizeof(Entry) == 16);
  void read_section(Elf_Scn* section);
  void sort_and_close();

  Elf* elf_;
  std::vector<Entry> entries_;
  std::vector<size_t> string_sections_;
  std::vector<uint64_t> code_ends_;  // sorted ends of executable sections
};

}  // namespace gpuprof::symbolize

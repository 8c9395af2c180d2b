// SPDX-License-Identifier: Apache-2.0
#include "tools/elfgate/symbol_versions.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace gpuprof::elfgate {
namespace {

// The index of a version has 15 bits, so no file has more; chains that share their entries would.
constexpr size_t kMaxVersions = 32768;
constexpr size_t kSymbolsKept = 5;
constexpr uint16_t kIndexMask = 0x7fff;
constexpr uint16_t kHiddenBit = 0x8000;

template <class T>
bool take(std::span<const uint8_t> table, uint64_t offset, T& out) {
  if (offset > table.size() || sizeof(T) > table.size() - offset) return false;
  std::memcpy(&out, table.data() + offset, sizeof(T));
  return true;
}

Result<std::span<const uint8_t>> table_at(const ElfImage& image, uint64_t address,
                                          std::string_view what) {
  // Its size is nowhere in PT_DYNAMIC: it ends by its own chain, within its segment.
  const uint64_t bytes = std::min(image.bytes_from(address), uint64_t{1} << 20);
  if (bytes == 0) return fail(std::string(what) + " lies in no loaded segment");
  return image.at_address(address, bytes, what);
}

}  // namespace

Result<SymbolVersions> SymbolVersions::read(const ElfImage& image, const DynamicSection& dynamic) {
  SymbolVersions versions;
  if (Status read = versions.read_needs(image, dynamic); !read) return fail(read.error());
  if (Status read = versions.read_definitions(image, dynamic); !read) return fail(read.error());
  return versions;
}

Status SymbolVersions::read_needs(const ElfImage& image, const DynamicSection& dynamic) {
  const auto address = dynamic.value(DT_VERNEED);
  if (!address) return {};
  const auto table = table_at(image, *address, "DT_VERNEED");
  if (!table) return fail(table.error());
  const uint64_t count = dynamic.value(DT_VERNEEDNUM).value_or(UINT64_MAX);
  uint64_t offset = 0;
  for (uint64_t i = 0; i < count; ++i) {
    Elf64_Verneed need;
    if (!take(*table, offset, need)) return fail("DT_VERNEED is cut");
    const auto file = dynamic.string_at(need.vn_file, "a file name of DT_VERNEED");
    if (!file) return fail(file.error());
    if (Status read = read_need_versions(*table, offset + need.vn_aux, need.vn_cnt, *file, dynamic);
        !read) {
      return read;
    }
    if (need.vn_next == 0) break;
    offset += need.vn_next;
    if (i > kMaxVersions) return fail("too many entries in DT_VERNEED");
  }
  return {};
}

Status SymbolVersions::read_need_versions(std::span<const uint8_t> table, uint64_t offset,
                                          uint16_t count, std::string_view file,
                                          const DynamicSection& dynamic) {
  for (uint16_t i = 0; i < count; ++i) {
    Elf64_Vernaux version;
    if (!take(table, offset, version)) return fail("DT_VERNEED is cut");
    if (needs.size() >= kMaxVersions) return fail("too many versions in DT_VERNEED");
    const auto name = dynamic.string_at(version.vna_name, "a version's name");
    if (!name) return fail(name.error());
    VersionNeed need;
    need.file = file;
    need.name = *name;
    need.is_weak = (version.vna_flags & VER_FLG_WEAK) != 0;
    need_of_index_.emplace(version.vna_other & kIndexMask, needs.size());
    needs.push_back(std::move(need));
    if (version.vna_next == 0) break;
    offset += version.vna_next;
  }
  return {};
}

Status SymbolVersions::read_definitions(const ElfImage& image, const DynamicSection& dynamic) {
  const auto address = dynamic.value(DT_VERDEF);
  if (!address) return {};
  const auto table = table_at(image, *address, "DT_VERDEF");
  if (!table) return fail(table.error());
  const uint64_t count = dynamic.value(DT_VERDEFNUM).value_or(UINT64_MAX);
  uint64_t offset = 0;
  for (uint64_t i = 0; i < count; ++i) {
    Elf64_Verdef definition;
    Elf64_Verdaux name_entry;
    if (!take(*table, offset, definition)) return fail("DT_VERDEF is cut");
    if (!take(*table, offset + definition.vd_aux, name_entry)) return fail("DT_VERDEF is cut");
    if (definitions.size() >= kMaxVersions) return fail("too many versions in DT_VERDEF");
    const auto name = dynamic.string_at(name_entry.vda_name, "a version's name");
    if (!name) return fail(name.error());
    if ((definition.vd_flags & VER_FLG_BASE) == 0) {
      definitions.push_back(*name);
      definition_of_index_.emplace(definition.vd_ndx & kIndexMask, *name);
    }
    if (definition.vd_next == 0) break;
    offset += definition.vd_next;
    if (i > kMaxVersions) return fail("too many entries in DT_VERDEF");
  }
  return {};
}

Status SymbolVersions::read_indexes(const ElfImage& image, const DynamicSection& dynamic,
                                    uint64_t count) {
  const auto address = dynamic.value(DT_VERSYM);
  if (!address) return {};
  const auto table = image.at_address(*address, count * sizeof(uint16_t), "DT_VERSYM");
  if (!table) return fail(table.error());
  indexes_ = *table;
  return {};
}

void SymbolVersions::name_symbol(uint64_t index, Symbol& symbol) {
  uint16_t version = VER_NDX_GLOBAL;
  if (!take(indexes_, index * sizeof(version), version)) return;
  const uint16_t key = version & kIndexMask;
  // A needed version can also be that of a definition: a copy relocation's variable.
  if (const auto found = definition_of_index_.find(key); found != definition_of_index_.end()) {
    symbol.version = found->second;
    symbol.is_default_version = (version & kHiddenBit) == 0;
    return;
  }
  const auto found = need_of_index_.find(key);
  if (found == need_of_index_.end()) return;
  VersionNeed& need = needs[found->second];
  symbol.version = need.name;
  if (need.symbols.size() < kSymbolsKept) need.symbols.push_back(symbol.name);
  ++need.symbol_count;
  if (symbol.binding != STB_WEAK) ++need.strong_symbol_count;
}

}  // namespace gpuprof::elfgate

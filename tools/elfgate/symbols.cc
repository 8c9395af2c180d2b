// SPDX-License-Identifier: Apache-2.0
#include "tools/elfgate/symbols.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

namespace gpuprof::elfgate {
namespace {

// Sizes of DT_ANDROID_REL, DT_ANDROID_RELA and DT_ANDROID_RELR (LLVM,
// BinaryFormat/DynamicTags.def).
constexpr int64_t kAndroidRelSize = 0x60000010;
constexpr int64_t kAndroidRelaSize = 0x60000012;
constexpr int64_t kAndroidRelrSize = 0x6fffe001;

// Many symbols may share one long name. libLLVM's have 4 MB together.
constexpr uint64_t kPrefetched = 16;
constexpr uint64_t kMaxNamesBytes = uint64_t{256} << 20;

uint32_t word_at(std::span<const uint8_t> table, uint64_t index) {
  uint32_t word = 0;
  std::memcpy(&word, table.data() + index * sizeof(word), sizeof(word));
  return word;
}

Elf64_Sym symbol_at(std::span<const uint8_t> table, uint64_t index) {
  Elf64_Sym symbol;
  std::memcpy(&symbol, table.data() + index * sizeof(symbol), sizeof(symbol));
  return symbol;
}

void count_x86(uint32_t type, Relocations& counts) {
  switch (type) {
    case R_X86_64_TPOFF64:
    case R_X86_64_TPOFF32:
      ++counts.initial_exec;
      break;
    case R_X86_64_DTPMOD64:
      ++counts.tls_module;
      break;
    case R_X86_64_TLSDESC:
      ++counts.tls_descriptors;
      break;
    case R_X86_64_IRELATIVE:
      ++counts.irelative;
      break;
    default:
      break;
  }
}

void count_aarch64(uint32_t type, Relocations& counts) {
  switch (type) {
    case R_AARCH64_TLS_TPREL:
      ++counts.initial_exec;
      break;
    case R_AARCH64_TLS_DTPMOD:
      ++counts.tls_module;
      break;
    case R_AARCH64_TLSDESC:
      ++counts.tls_descriptors;
      break;
    case R_AARCH64_IRELATIVE:
      ++counts.irelative;
      break;
    default:
      break;
  }
}

struct RelocationTable {
  uint64_t address;
  uint64_t size_bytes;
  uint64_t entry_bytes;
};

Status count_table(const ElfImage& image, const RelocationTable& table, Relocations& counts,
                   uint64_t& highest_symbol) {
  const bool is_x86 = image.header().e_machine == EM_X86_64;
  const auto count = [&](std::span<const uint8_t> bytes) {
    for (size_t at = 0; at + table.entry_bytes <= bytes.size(); at += table.entry_bytes) {
      Elf64_Rel entry;  // the part that Elf64_Rela begins with
      std::memcpy(&entry, bytes.data() + at, sizeof(entry));
      ++counts.count;
      const auto type = static_cast<uint32_t>(ELF64_R_TYPE(entry.r_info));
      if (is_x86) {
        count_x86(type, counts);
      } else {
        count_aarch64(type, counts);
      }
      highest_symbol = std::max<uint64_t>(highest_symbol, ELF64_R_SYM(entry.r_info));
    }
  };
  // Of libLLVM 9 MB, which are looked at once.
  return image.each_block(table.address, table.size_bytes, table.entry_bytes, "a relocation table",
                          count);
}

// DT_HASH: nbucket, nchain, ...; a chain entry for each symbol. 0: no such table.
Result<uint64_t> count_by_sysv_hash(const ElfImage& image, uint64_t address) {
  const auto head = image.at_address(address, 8, "DT_HASH");
  if (!head) return fail(head.error());
  return uint64_t{word_at(*head, 1)};
}

// DT_GNU_HASH: nbuckets, symoffset, bloom words, shift, bloom, buckets, chains. The symbols from
// symoffset on are sorted by bucket, so the last chain of the highest bucket ends at the last
// symbol.
Result<uint64_t> count_by_gnu_hash(const ElfImage& image, uint64_t address) {
  const auto head = image.at_address(address, 16, "DT_GNU_HASH");
  if (!head) return fail(head.error());
  const uint64_t bucket_count = word_at(*head, 0);
  const uint64_t first_hashed = word_at(*head, 1);
  const uint64_t bloom_bytes = uint64_t{word_at(*head, 2)} * 8;
  const auto buckets =
      image.at_address(address + 16 + bloom_bytes, bucket_count * 4, "the buckets of DT_GNU_HASH");
  if (!buckets) return fail(buckets.error());
  uint64_t last = 0;
  for (uint64_t i = 0; i < bucket_count; ++i) last = std::max<uint64_t>(last, word_at(*buckets, i));
  if (last < first_hashed) return first_hashed;
  const uint64_t chains = address + 16 + bloom_bytes + bucket_count * 4;
  const uint64_t available = image.bytes_from(chains) / 4;
  // The rest of the segment may be long and the chain's end is near, so by blocks.
  for (uint64_t i = last - first_hashed; i < available;) {
    const uint64_t block = std::min<uint64_t>(available - i, 1024);
    const auto words = image.at_address(chains + i * 4, block * 4, "the chains of DT_GNU_HASH");
    if (!words) return fail(words.error());
    for (uint64_t k = 0; k < block; ++k, ++i) {
      if ((word_at(*words, k) & 1) != 0) return first_hashed + i + 1;
    }
  }
  return fail("the last chain of DT_GNU_HASH has no end");
}

Result<uint64_t> count_symbols(const ElfImage& image, const DynamicSection& dynamic,
                               uint64_t highest_symbol) {
  uint64_t count = highest_symbol == 0 ? 0 : highest_symbol + 1;
  if (const auto address = dynamic.value(DT_HASH)) {
    auto found = count_by_sysv_hash(image, *address);
    if (!found) return found;
    count = std::max(count, *found);
  }
  if (const auto address = dynamic.value(DT_GNU_HASH)) {
    auto found = count_by_gnu_hash(image, *address);
    if (!found) return found;
    count = std::max(count, *found);
  }
  for (const Section& section : image.sections()) {
    // Symbols that no relocation and no hash table knows: undefined and unused.
    if (section.header.sh_type == SHT_DYNSYM &&
        section.header.sh_addr == dynamic.value(DT_SYMTAB)) {
      count = std::max(count, section.header.sh_size / sizeof(Elf64_Sym));
    }
  }
  return count;
}

}  // namespace

Result<Relocations> read_relocations(const ElfImage& image, const DynamicSection& dynamic,
                                     uint64_t& highest_symbol) {
  Relocations counts;
  const RelocationTable rela{dynamic.value(DT_RELA).value_or(0),
                             dynamic.value(DT_RELASZ).value_or(0), sizeof(Elf64_Rela)};
  const RelocationTable rel{dynamic.value(DT_REL).value_or(0), dynamic.value(DT_RELSZ).value_or(0),
                            sizeof(Elf64_Rel)};
  const RelocationTable plt{
      dynamic.value(DT_JMPREL).value_or(0), dynamic.value(DT_PLTRELSZ).value_or(0),
      dynamic.value(DT_PLTREL) == uint64_t{DT_REL} ? sizeof(Elf64_Rel) : sizeof(Elf64_Rela)};
  std::vector<RelocationTable> tables{rela, rel};
  // Some linkers count the PLT's relocations in DT_RELASZ too.
  if (plt.address < rela.address || plt.address - rela.address >= rela.size_bytes) {
    tables.push_back(plt);
  }
  for (const RelocationTable& table : tables) {
    if (table.size_bytes == 0) continue;
    if (Status read = count_table(image, table, counts, highest_symbol); !read) {
      return fail(read.error());
    }
  }
  // ELF's own, and Android's three, which glibc's elf.h does not name.
  for (const int64_t tag :
       {int64_t{DT_RELRSZ}, kAndroidRelSize, kAndroidRelaSize, kAndroidRelrSize}) {
    counts.packed_size_bytes += dynamic.value(tag).value_or(0);
  }
  return counts;
}

Result<std::vector<Symbol>> read_symbols(const ElfImage& image, const DynamicSection& dynamic,
                                         uint64_t highest_symbol, SymbolVersions& versions) {
  std::vector<Symbol> symbols;
  const auto address = dynamic.value(DT_SYMTAB);
  if (!address) return symbols;
  const auto count = count_symbols(image, dynamic, highest_symbol);
  if (!count) return fail(count.error());
  if (*count == 0) return symbols;
  if (*count > ElfImage::kMaxTableBytes / sizeof(Elf64_Sym))
    return fail("too many dynamic symbols");
  const auto table = image.at_address(*address, *count * sizeof(Elf64_Sym), "DT_SYMTAB");
  if (!table) return fail(table.error());
  if (Status read = versions.read_indexes(image, dynamic, *count); !read) return fail(read.error());
  symbols.reserve(*count - 1);
  uint64_t name_bytes = 0;
  for (uint64_t i = 1; i < *count; ++i) {
    const Elf64_Sym entry = symbol_at(*table, i);
    // The names of libLLVM's 45,000 symbols lie all over 3 MB.
    if (i + kPrefetched < *count)
      dynamic.prefetch_string(symbol_at(*table, i + kPrefetched).st_name);
    const auto name = dynamic.string_at(entry.st_name, "a symbol's name");
    if (!name) return fail(name.error());
    name_bytes += name->size();
    if (name_bytes > kMaxNamesBytes)
      return fail("the symbols' names are longer than 256 MiB together");
    Symbol symbol;
    symbol.name = *name;
    symbol.is_defined = entry.st_shndx != SHN_UNDEF;
    symbol.is_absolute = entry.st_shndx == SHN_ABS;
    symbol.type = ELF64_ST_TYPE(entry.st_info);
    symbol.binding = ELF64_ST_BIND(entry.st_info);
    symbol.visibility = ELF64_ST_VISIBILITY(entry.st_other);
    versions.name_symbol(i, symbol);
    symbols.push_back(symbol);
  }
  return symbols;
}

}  // namespace gpuprof::elfgate

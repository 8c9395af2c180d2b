// SPDX-License-Identifier: Apache-2.0
#include "shim/cupti/loaded_elf.h"

#include <cstring>

namespace gpuprof::cupti {

LoadedElf::LoadedElf(const dl_phdr_info& info) noexcept {
  const ElfW(Dyn)* entry = nullptr;
  for (uint32_t i = 0; i < info.dlpi_phnum; ++i) {
    if (info.dlpi_phdr[i].p_type == PT_DYNAMIC) {
      entry = reinterpret_cast<const ElfW(Dyn)*>(info.dlpi_addr + info.dlpi_phdr[i].p_vaddr);
    }
  }
  if (entry == nullptr) return;
  // glibc has turned the addresses in it into absolute ones, but for the vDSO's.
  const auto address = [&info](ElfW(Addr) value) {
    return value >= info.dlpi_addr ? value : value + info.dlpi_addr;
  };
  for (; entry->d_tag != DT_NULL; ++entry) {
    switch (entry->d_tag) {
      case DT_STRTAB:
        strings_ = reinterpret_cast<const char*>(address(entry->d_un.d_ptr));
        break;
      case DT_SYMTAB:
        symbols_ = reinterpret_cast<const ElfW(Sym)*>(address(entry->d_un.d_ptr));
        break;
      case DT_GNU_HASH:
        hash_ = reinterpret_cast<const uint32_t*>(address(entry->d_un.d_ptr));
        break;
      case DT_SONAME:
        soname_ = entry->d_un.d_val;
        break;
      case DT_RUNPATH:
        run_path_ = entry->d_un.d_val;
        break;
      case DT_RPATH:
        rpath_ = entry->d_un.d_val;
        break;
      default:
        break;
    }
  }
}

bool LoadedElf::exports(const char* symbol) const noexcept {
  if (hash_ == nullptr || symbols_ == nullptr || strings_ == nullptr) return false;
  // Buckets, first hashed symbol, words of the Bloom filter and its shift; then filter, buckets,
  // chains.
  const uint32_t buckets = hash_[0], first = hash_[1], words = hash_[2], shift = hash_[3];
  if (buckets == 0 || words == 0) return false;
  uint32_t hash = 5381;
  for (const char* at = symbol; *at != '\0'; ++at) hash = hash * 33 + static_cast<uint8_t>(*at);
  constexpr uint32_t kWordBits = 8 * sizeof(ElfW(Addr));
  const auto* filter = reinterpret_cast<const ElfW(Addr)*>(hash_ + 4);
  const ElfW(Addr) word = filter[hash / kWordBits % words];
  if ((word >> hash % kWordBits & word >> (hash >> shift) % kWordBits & 1) == 0) return false;
  const auto* bucket = reinterpret_cast<const uint32_t*>(filter + words);
  const uint32_t* chain = bucket + buckets;
  uint32_t index = bucket[hash % buckets];
  if (index < first) return false;
  for (;; ++index) {
    const uint32_t entry = chain[index - first];
    if ((entry | 1) == (hash | 1) && symbols_[index].st_shndx != SHN_UNDEF &&
        strcmp(strings_ + symbols_[index].st_name, symbol) == 0) {
      return true;
    }
    if ((entry & 1) != 0) return false;
  }
}

}  // namespace gpuprof::cupti

// SPDX-License-Identifier: Apache-2.0
#include "tools/elfgate/dynamic_section.h"

#include <cstring>
#include <string>

namespace gpuprof::elfgate {
namespace {

// Many entries may name one string, so its length counts as often as they are many.
constexpr size_t kMaxNameBytes = 65536;

}  // namespace

Result<DynamicSection> DynamicSection::read(const ElfImage& image) {
  DynamicSection section;
  const GElf_Phdr* segment = image.segment(PT_DYNAMIC);
  if (!segment) return section;
  if (segment->p_filesz == 0) {
    return fail("PT_DYNAMIC has no bytes in this file; is it separate debug information?");
  }
  const auto bytes = image.at_offset(segment->p_offset, segment->p_filesz, "PT_DYNAMIC");
  if (!bytes) return fail(bytes.error());
  section.is_present_ = true;
  for (size_t at = 0; at + sizeof(Elf64_Dyn) <= bytes->size(); at += sizeof(Elf64_Dyn)) {
    Elf64_Dyn entry;
    std::memcpy(&entry, bytes->data() + at, sizeof(entry));
    if (entry.d_tag == DT_NULL) break;
    section.entries_.push_back(entry);
  }
  const auto table = section.value(DT_STRTAB);
  const auto size = section.value(DT_STRSZ);
  if (!table || !size) return section;
  const auto strings = image.at_address(*table, *size, "the dynamic string table");
  if (!strings) return fail(strings.error());
  section.strings_ = {reinterpret_cast<const char*>(strings->data()), strings->size()};
  return section;
}

std::optional<uint64_t> DynamicSection::value(int64_t tag) const {
  for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
    if (entry->d_tag == tag) return entry->d_un.d_val;
  }
  return std::nullopt;
}

Result<std::string_view> DynamicSection::string_at(uint64_t offset, std::string_view what) const {
  if (offset < strings_.size()) {
    const std::string_view rest = strings_.substr(offset, kMaxNameBytes);
    const size_t end = rest.find('\0');
    if (end != std::string_view::npos) return rest.substr(0, end);
    if (rest.size() == kMaxNameBytes) return fail(std::string(what) + " is longer than 64 KiB");
  }
  return fail(std::string(what) + " lies outside the dynamic string table");
}

}  // namespace gpuprof::elfgate

// SPDX-License-Identifier: Apache-2.0
#include "daemon/unwind/elf_cfi.h"

#include <elf.h>
#include <gelf.h>

#include <algorithm>
#include <cstring>
#include <string_view>

namespace gpuprof::unwind {
namespace {

using Bytes = std::span<const uint8_t>;

template <class T>
std::optional<T> header_at(Bytes elf, uint64_t offset) {
  if (elf.size() < sizeof(T) || offset > elf.size() - sizeof(T)) return std::nullopt;
  T header;
  std::memcpy(&header, elf.data() + offset, sizeof header);
  return header;
}

std::optional<Bytes> part(Bytes elf, uint64_t offset, uint64_t size) {
  if (offset > elf.size() || size > elf.size() - offset) return std::nullopt;
  return elf.subspan(offset, size);
}

std::optional<Elf64_Shdr> section_at(Bytes elf, const Elf64_Ehdr& header, uint64_t index) {
  if (header.e_shoff == 0 || header.e_shoff > elf.size()) return std::nullopt;
  return header_at<Elf64_Shdr>(elf.subspan(header.e_shoff), index * sizeof(Elf64_Shdr));
}

struct Named {
  uint64_t index;
  Elf64_Shdr header;
};

// Sections by name: at most kMaxSections headers are looked at, and of a name no more than is
// compared.
class Sections {
 public:
  explicit Sections(Bytes elf) : elf_(elf) {
    const auto header = header_at<Elf64_Ehdr>(elf, 0);
    if (!header || header->e_shentsize != sizeof(Elf64_Shdr)) return;
    header_ = *header;
    uint64_t names = header_.e_shstrndx;
    if (names == SHN_XINDEX) {
      const auto first = section_at(elf_, header_, 0);
      names = first ? first->sh_link : 0;
    }
    const auto table = section_at(elf_, header_, names);
    if (names == 0 || !table || table->sh_type != SHT_STRTAB) return;
    const auto bytes = part(elf_, table->sh_offset, table->sh_size);
    if (!bytes) return;
    names_ = *bytes;
    count_ = std::min(section_count(elf_), kMaxSections);
  }

  [[nodiscard]] std::optional<Named> find(std::string_view name) const {
    for (uint64_t i = 1; i < count_; ++i) {
      const auto header = section_at(elf_, header_, i);
      if (!header) break;
      if (header->sh_type != SHT_NOBITS && is_named(header->sh_name, name)) return {{i, *header}};
    }
    return std::nullopt;
  }

 private:
  [[nodiscard]] bool is_named(uint64_t at, std::string_view name) const {
    const auto bytes = part(names_, at, name.size() + 1);
    return bytes && std::memcmp(bytes->data(), name.data(), name.size()) == 0 && bytes->back() == 0;
  }

  Bytes elf_;
  Bytes names_;
  Elf64_Ehdr header_ = {};
  uint64_t count_ = 0;
};

std::optional<FdeFinder> by_sections(Bytes elf, const Sections& sections, const Named& found) {
  const auto bytes = part(elf, found.header.sh_offset, found.header.sh_size);
  if (!bytes) return std::nullopt;
  const CfiSection section{*bytes, found.header.sh_addr, true};
  const auto named = sections.find(".eh_frame_hdr");
  if (!named) return FdeFinder(section, std::nullopt);
  const auto header_bytes = part(elf, named->header.sh_offset, named->header.sh_size);
  if (!header_bytes) return FdeFinder(section, std::nullopt);
  const auto fields = read_eh_frame_header({*header_bytes, named->header.sh_addr, true});
  if (!fields) return std::nullopt;
  const bool is_about_it = fields->eh_frame == section.address;
  return FdeFinder(section, is_about_it ? fields->table : std::nullopt);
}

// Without section headers nothing says how long .eh_frame is: at most to the end of the file.
std::optional<FdeFinder> by_segment(Bytes elf, const Elf64_Phdr& segment) {
  const auto header_bytes = part(elf, segment.p_offset, segment.p_filesz);
  if (!header_bytes) return std::nullopt;
  const auto fields = read_eh_frame_header({*header_bytes, segment.p_vaddr, true});
  if (!fields) return std::nullopt;
  const uint64_t offset = fields->eh_frame - segment.p_vaddr + segment.p_offset;
  if (offset >= elf.size()) return std::nullopt;
  return FdeFinder({elf.subspan(offset), fields->eh_frame, true}, fields->table);
}

}  // namespace

uint64_t section_count(Bytes elf) {
  const auto header = header_at<Elf64_Ehdr>(elf, 0);
  if (!header || header->e_shoff == 0) return 0;
  if (header->e_shnum != 0) return header->e_shnum;
  const auto first = section_at(elf, *header, 0);  // more than a field of 16 bits holds
  return first ? first->sh_size : 0;
}

std::optional<FdeFinder> find_eh_frame(Bytes elf) {
  const Sections sections(elf);
  if (const auto section = sections.find(".eh_frame")) return by_sections(elf, sections, *section);
  const auto header = header_at<Elf64_Ehdr>(elf, 0);
  if (!header || header->e_phentsize != sizeof(Elf64_Phdr)) return std::nullopt;
  for (uint64_t i = 0; i < header->e_phnum; ++i) {
    const uint64_t offset = header->e_phoff + i * sizeof(Elf64_Phdr);
    const auto segment = header_at<Elf64_Phdr>(elf, offset);
    if (!segment) break;
    if (segment->p_type == PT_GNU_EH_FRAME) return by_segment(elf, *segment);
  }
  return std::nullopt;
}

std::optional<FdeFinder> find_debug_frame(Bytes elf, Elf* handle) {
  const auto named = Sections(elf).find(".debug_frame");
  if (!named) return std::nullopt;
  Elf_Scn* const scn = elf_getscn(handle, named->index);
  GElf_Shdr header;
  if (scn == nullptr || gelf_getshdr(scn, &header) == nullptr) return std::nullopt;
  if ((header.sh_flags & SHF_COMPRESSED) != 0) {
    GElf_Chdr compressed;
    if (gelf_getchdr(scn, &compressed) == nullptr ||
        compressed.ch_size > FdeFinder::kMaxIndexedBytes || elf_compress(scn, 0, 0) < 0) {
      return std::nullopt;
    }
  }
  const Elf_Data* const data = elf_rawdata(scn, nullptr);
  if (data == nullptr || data->d_buf == nullptr) return std::nullopt;
  const Bytes bytes(static_cast<const uint8_t*>(data->d_buf), data->d_size);
  return FdeFinder({bytes, 0, false}, std::nullopt);
}

}  // namespace gpuprof::unwind

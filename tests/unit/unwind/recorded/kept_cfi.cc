// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/unwind/recorded/kept_cfi.h"

#include <elf.h>
#include <gelf.h>
#include <libelf.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "daemon/unwind/cfi_section.h"

namespace gpuprof::unwind::test {
namespace {

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "kept_cfi: %s\n", what);
  std::exit(1);
}

struct Found {
  size_t index = 0;
  Elf64_Shdr header = {};
  std::string bytes;  // decompressed
};

std::optional<Found> find(std::string& image, std::string_view name) {
  elf_version(EV_CURRENT);
  Elf* const elf = elf_memory(image.data(), image.size());
  size_t names = 0;
  std::optional<Found> out;
  if (elf != nullptr && elf_getshdrstrndx(elf, &names) == 0) {
    for (Elf_Scn* scn = nullptr; (scn = elf_nextscn(elf, scn)) != nullptr;) {
      const Elf64_Shdr* const header = elf64_getshdr(scn);
      const char* const is = elf_strptr(elf, names, header->sh_name);
      if (is == nullptr || name != is || header->sh_type == SHT_NOBITS) continue;
      Found found{elf_ndxscn(scn), *header, {}};
      if ((header->sh_flags & SHF_COMPRESSED) != 0 && elf_compress(scn, 0, 0) < 0)
        die(elf_errmsg(-1));
      const Elf_Data* const data = elf_rawdata(scn, nullptr);
      if (data == nullptr) die(elf_errmsg(-1));
      found.bytes.assign(static_cast<const char*>(data->d_buf), data->d_size);
      out = found;
      break;
    }
  }
  elf_end(elf);
  return out;
}

CfiSection section_of(const Found& found, bool is_eh_frame) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(found.bytes.data());
  return {{bytes, found.bytes.size()}, is_eh_frame ? found.header.sh_addr : 0, is_eh_frame};
}

// Offsets of the records to keep: the FDEs that cover an address, their CIEs, and the first record,
// which is the CIE of what fills the gaps. Empty where no FDE covers one.
std::set<uint64_t> wanted_records(const CfiSection& section, const std::set<uint64_t>& addresses) {
  std::set<uint64_t> out;
  uint64_t at = 0;
  while (const auto record = record_at(section, at)) {
    const uint64_t next = record->body.end;
    if (const auto fde = record->is_cie ? std::nullopt : fde_at(section, at)) {
      const auto inside = addresses.lower_bound(fde->start);
      if (inside != addresses.end() && fde->covers(*inside)) out.insert({at, record->cie});
    }
    at = next;
  }
  if (!out.empty()) out.insert(0);
  return out;
}

void put32(std::string& bytes, uint64_t at, uint32_t value) {
  std::memcpy(&bytes[at], &value, sizeof value);
}

// An FDE of the first CIE, of address 0 and length 0.
void fill(std::string& bytes, uint64_t begin, uint64_t end, bool is_eh_frame) {
  if (begin == end) return;
  std::fill(bytes.begin() + static_cast<ptrdiff_t>(begin),
            bytes.begin() + static_cast<ptrdiff_t>(end), '\0');
  put32(bytes, begin, static_cast<uint32_t>(end - begin - 4));
  put32(bytes, begin + 4, is_eh_frame ? static_cast<uint32_t>(begin + 4) : 0);
}

void trim_section(Found& found, const std::set<uint64_t>& wanted, bool is_eh_frame) {
  const std::string original = found.bytes;
  const Found copy{found.index, found.header, original};
  const CfiSection section = section_of(copy, is_eh_frame);
  uint64_t gap = 0, at = 0;
  while (const auto record = record_at(section, at)) {
    const uint64_t next = record->body.end;
    if (wanted.contains(at)) {
      fill(found.bytes, gap, at, is_eh_frame);
      gap = next;
    }
    at = next;
  }
  fill(found.bytes, gap, at, is_eh_frame);
}

// Of the binary search table only the entries of kept records.
void trim_header(Found& header, const Found& eh_frame, const std::set<uint64_t>& wanted) {
  if (header.bytes.size() < 12 || std::memcmp(header.bytes.data(), "\x01\x1b\x03\x3b", 4) != 0)
    die("an .eh_frame_hdr that is not the linkers'");
  std::string table;
  for (size_t at = 12; at + 8 <= header.bytes.size(); at += 8) {
    int32_t offset = 0;
    std::memcpy(&offset, &header.bytes[at + 4], sizeof offset);
    const uint64_t record =
        header.header.sh_addr + static_cast<uint64_t>(int64_t{offset}) - eh_frame.header.sh_addr;
    if (wanted.contains(record)) table.append(header.bytes, at, 8);
  }
  put32(header.bytes, 8, static_cast<uint32_t>(table.size() / 8));
  table.resize(header.bytes.size() - 12);
  header.bytes.replace(12, table.size(), table);
}

// Sections without bytes of their own that are not looked into keep their place in the table.
void keep_headers(const std::string& image, std::string& out) {
  Elf64_Ehdr ehdr;
  std::memcpy(&ehdr, image.data(), sizeof ehdr);
  const auto keep = [&](uint64_t at, uint64_t size) {
    if (at > image.size() || size > image.size() - at) die("headers outside of the file");
    out.replace(at, size, image, at, size);
  };
  keep(0, sizeof ehdr);
  keep(ehdr.e_phoff, uint64_t{ehdr.e_phnum} * ehdr.e_phentsize);
  keep(ehdr.e_shoff, uint64_t{ehdr.e_shnum} * ehdr.e_shentsize);
  if (ehdr.e_shnum == 0) return;
  auto* const headers = reinterpret_cast<Elf64_Shdr*>(&out[ehdr.e_shoff]);
  keep(headers[ehdr.e_shstrndx].sh_offset, headers[ehdr.e_shstrndx].sh_size);
  for (size_t i = 0; i < ehdr.e_shnum; ++i) {
    if (i != ehdr.e_shstrndx) headers[i].sh_type = SHT_NULL;
  }
}

void put_section(std::string& out, const Found& found, uint64_t offset) {
  Elf64_Ehdr ehdr;
  std::memcpy(&ehdr, out.data(), sizeof ehdr);
  if (out.size() < offset + found.bytes.size()) out.resize(offset + found.bytes.size());
  out.replace(offset, found.bytes.size(), found.bytes);
  Elf64_Shdr header = found.header;
  header.sh_offset = offset;
  header.sh_size = found.bytes.size();
  header.sh_flags &= ~uint64_t{SHF_COMPRESSED};
  std::memcpy(&out[ehdr.e_shoff + found.index * sizeof header], &header, sizeof header);
}

}  // namespace

std::string keep_cfi(std::string image, const std::set<uint64_t>& addresses) {
  std::string out(image.size(), '\0');
  keep_headers(image, out);
  if (auto eh_frame = find(image, ".eh_frame")) {
    const auto wanted = wanted_records(section_of(*eh_frame, true), addresses);
    auto header = find(image, ".eh_frame_hdr");
    if (!wanted.empty()) {
      if (header) trim_header(*header, *eh_frame, wanted);
      trim_section(*eh_frame, wanted, true);
      put_section(out, *eh_frame, eh_frame->header.sh_offset);
      if (header) put_section(out, *header, header->header.sh_offset);
    }
  }
  if (auto debug_frame = find(image, ".debug_frame")) {
    const auto wanted = wanted_records(section_of(*debug_frame, false), addresses);
    if (!wanted.empty()) {
      trim_section(*debug_frame, wanted, false);
      const bool is_larger = (debug_frame->header.sh_flags & SHF_COMPRESSED) != 0;
      put_section(out, *debug_frame, is_larger ? image.size() : debug_frame->header.sh_offset);
    }
  }
  return out;
}

}  // namespace gpuprof::unwind::test

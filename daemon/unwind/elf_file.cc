// SPDX-License-Identifier: Apache-2.0
#include "daemon/unwind/elf_file.h"

#include <elfutils/libdwelf.h>
#include <gelf.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "daemon/base/hex.h"
#include "daemon/unwind/elf_cfi.h"

namespace gpuprof::unwind {
namespace {

constexpr size_t kMaxProgramHeaders = 4096;

}  // namespace

ElfFile::~ElfFile() = default;

Result<std::shared_ptr<ElfFile>> ElfFile::from_file(MappedFile mapped) {
  std::shared_ptr<ElfFile> file(new ElfFile);
  file->file_ = std::move(mapped);
  const std::span<uint8_t> bytes = file->file_.bytes();
  return parse(std::move(file), bytes);
}

Result<std::shared_ptr<ElfFile>> ElfFile::from_memory(std::vector<uint8_t> image) {
  std::shared_ptr<ElfFile> file(new ElfFile);
  file->image_ = std::move(image);
  const std::span<uint8_t> bytes = file->image_;
  return parse(std::move(file), bytes);
}

Result<std::shared_ptr<ElfFile>> ElfFile::parse(std::shared_ptr<ElfFile> file,
                                                std::span<uint8_t> bytes) {
  [[maybe_unused]] static const unsigned version = elf_version(EV_CURRENT);
  if (section_count(bytes) > kMaxSections) return fail(Code::kCorrupt, "too many sections");
  file->elf_.reset(elf_memory(reinterpret_cast<char*>(bytes.data()), bytes.size()));
  Elf* elf = file->elf_.get();
  GElf_Ehdr header;
  if (elf == nullptr || elf_kind(elf) != ELF_K_ELF || gelf_getehdr(elf, &header) == nullptr) {
    return fail(Code::kCorrupt, "not an ELF file");
  }
  const bool known = header.e_machine == EM_X86_64 || header.e_machine == EM_AARCH64;
  if (!known || header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB) {
    return fail(Code::kUnsupported, "not a 64-bit x86-64 or aarch64 ELF file");
  }
  file->machine_ = header.e_machine == EM_X86_64 ? Machine::kX86_64 : Machine::kAarch64;
  size_t count = 0;
  if (elf_getphdrnum(elf, &count) != 0 || count > kMaxProgramHeaders) {
    return fail(Code::kCorrupt, "bad program headers");
  }
  for (size_t i = 0; i < count; ++i) {
    GElf_Phdr ph;
    if (gelf_getphdr(elf, static_cast<int>(i), &ph) == nullptr) break;
    if (ph.p_type == PT_LOAD && (ph.p_flags & PF_X) != 0) {
      file->segments_.push_back({ph.p_vaddr, ph.p_offset, ph.p_filesz, ph.p_memsz});
    }
  }
  const void* id = nullptr;
  const ssize_t id_bytes = dwelf_elf_gnu_build_id(elf, &id);
  if (id_bytes > 0 && static_cast<size_t>(id_bytes) <= kMaxBuildIdBytes) {
    file->build_id_ = hex({static_cast<const uint8_t*>(id), static_cast<size_t>(id_bytes)});
  }
  return file;
}

std::optional<uint64_t> ElfFile::bias(uint64_t start, uint64_t file_offset) const {
  static const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  for (const Segment& s : segments_) {
    const uint64_t first = s.file_offset & ~(page - 1);
    if (file_offset < first || file_offset - first >= s.file_size + (s.file_offset - first))
      continue;
    return start - (file_offset - s.file_offset + s.address);
  }
  return std::nullopt;
}

CfiTable& ElfFile::cfi() {
  if (!cfi_) {
    cfi_ = std::make_unique<CfiTable>(
        machine_, find_eh_frame(bytes()), [this] { return find_debug_frame(bytes(), elf_.get()); },
        [this] { release_pages(); });
  }
  return *cfi_;
}

void ElfFile::release_pages() {
  GElf_Ehdr header;
  size_t sections = 0;
  const uint64_t size = file_.bytes().size();
  if (size == 0 || gelf_getehdr(elf_.get(), &header) == nullptr ||
      elf_getshdrnum(elf_.get(), &sections) != 0)
    return;
  const uint64_t begin = std::min<uint64_t>(header.e_shoff, size);
  const uint64_t end = begin + std::min(sections * sizeof(Elf64_Shdr), size - begin);
  const uint64_t phdrs =
      std::min<uint64_t>(header.e_phoff, size) + kMaxProgramHeaders * sizeof(Elf64_Phdr);
  file_.release(std::min(phdrs, size), begin);
  file_.release(std::max(phdrs, end), size);
}

// Damaged or hostile sections may claim to decompress to anything. `.zdebug` sections (GNU's old
// form) state their size in the data: big-endian after "ZLIB".
std::optional<uint64_t> ElfFile::decompressed_bytes() const {
  uint64_t total = 0;
  size_t names = 0;
  if (elf_getshdrstrndx(elf_.get(), &names) != 0) return 0;  // no sections
  for (Elf_Scn* scn = nullptr; (scn = elf_nextscn(elf_.get(), scn)) != nullptr;) {
    GElf_Shdr header;
    if (gelf_getshdr(scn, &header) == nullptr) continue;
    uint64_t size = 0;
    if ((header.sh_flags & SHF_COMPRESSED) != 0) {
      GElf_Chdr compressed;
      if (gelf_getchdr(scn, &compressed) == nullptr) return std::nullopt;
      size = compressed.ch_size;
    } else if (const char* name = elf_strptr(elf_.get(), names, header.sh_name);
               name != nullptr && std::string_view(name).starts_with(".zdebug")) {
      const Elf_Data* data = elf_rawdata(scn, nullptr);
      if (data == nullptr || data->d_buf == nullptr || data->d_size < 12) return std::nullopt;
      for (int i = 4; i < 12; ++i) size = size << 8 | static_cast<const uint8_t*>(data->d_buf)[i];
    }
    if (size > kMaxDecompressedBytes || (total += size) > kMaxDecompressedBytes)
      return std::nullopt;
  }
  return total;
}

}  // namespace gpuprof::unwind

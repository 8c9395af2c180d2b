// SPDX-License-Identifier: Apache-2.0
#include "tools/elfgate/elf_image.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

namespace gpuprof::elfgate {
namespace {

static_assert(std::endian::native == std::endian::little,
              "tables are read as they lie in the file");

// Linux maps at most 65536 / sizeof(Elf64_Phdr) headers (fs/binfmt_elf.c); real files have a dozen.
constexpr size_t kMaxSegments = 1170;
constexpr size_t kMaxSections = 65536;
constexpr size_t kBlockBytes = 65536;

// False where the file ends before.
bool read_all(int fd, uint64_t offset, std::span<uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = pread(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    offset += static_cast<uint64_t>(count);
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return true;
}

std::string elf_error(std::string_view what) {
  const char* text = elf_errmsg(-1);
  return std::string(what) + (text ? std::string(": ") + text : "");
}

}  // namespace

ElfImage::File::~File() { close(fd); }

Result<ElfImage> ElfImage::open(const std::string& path) {
  if (elf_version(EV_CURRENT) == EV_NONE) return fail("libelf is too old");
  // O_NONBLOCK: a FIFO must not hold us.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return fail(std::strerror(errno));
  ElfImage image;
  image.file_ = std::make_unique<File>(fd);
  struct stat info;
  if (fstat(fd, &info) != 0) return fail(std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return fail("not a regular file");
  image.size_bytes_ = static_cast<uint64_t>(info.st_size);
  // Not mapped: a file that is cut while it is read must be an error, not a SIGBUS.
  image.elf_.reset(elf_begin(fd, ELF_C_READ, nullptr));
  if (Status read = image.read_headers(); !read) return fail(read.error());
  return image;
}

Result<ElfImage> ElfImage::from_memory(std::span<const uint8_t> bytes) {
  if (elf_version(EV_CURRENT) == EV_NONE) return fail("libelf is too old");
  ElfImage image;
  image.size_bytes_ = bytes.size();
  // libelf takes char* for its writing modes; elf_memory reads only.
  image.elf_.reset(
      elf_memory(const_cast<char*>(reinterpret_cast<const char*>(bytes.data())), bytes.size()));
  if (Status read = image.read_headers(); !read) return fail(read.error());
  return image;
}

Status ElfImage::read_headers() {
  if (!elf_) return fail(elf_error("not an ELF file"));
  if (elf_kind(elf_.get()) == ELF_K_AR) return fail("an archive; check what was linked from it");
  if (elf_kind(elf_.get()) != ELF_K_ELF) return fail("not an ELF file");
  // Before libelf's own view of the header, so that the line says what the file is.
  size_t ident_bytes = 0;
  const char* ident = elf_getident(elf_.get(), &ident_bytes);
  if (!ident || ident_bytes < EI_NIDENT) return fail("not an ELF file");
  if (ident[EI_CLASS] != ELFCLASS64) return fail("a 32-bit file; only 64-bit ones are supported");
  if (ident[EI_DATA] != ELFDATA2LSB)
    return fail("a big-endian file; only x86-64 and aarch64 are supported");
  if (size_bytes_ < sizeof(Elf64_Ehdr) || !gelf_getehdr(elf_.get(), &header_)) {
    return fail(elf_error("bad ELF header"));
  }
  if (header_.e_machine != EM_X86_64 && header_.e_machine != EM_AARCH64) {
    return fail("machine " + std::to_string(header_.e_machine) +
                "; only x86-64 and aarch64 are supported");
  }
  if (header_.e_type == ET_REL) return fail("an object file; check what is linked from it");
  if (header_.e_type != ET_DYN && header_.e_type != ET_EXEC) {
    return fail("neither a program nor a shared library");
  }
  // The loader and libelf would each read other headers.
  if (header_.e_phentsize != sizeof(Elf64_Phdr)) {
    return fail("program headers of " + std::to_string(header_.e_phentsize) + " bytes, not 56");
  }
  size_t count = 0;
  if (elf_getphdrnum(elf_.get(), &count) != 0) return fail(elf_error("bad program headers"));
  if (count == 0) return fail("no program headers: nothing can load it");
  if (count > kMaxSegments) return fail("too many program headers");
  for (size_t i = 0; i < count; ++i) {
    GElf_Phdr segment;
    if (!gelf_getphdr(elf_.get(), static_cast<int>(i), &segment)) {
      return fail(elf_error("bad program headers"));
    }
    segments_.push_back(segment);
  }
  return read_sections();
}

// A file without sections is whole for the loader; one with a broken table is not for us.
Status ElfImage::read_sections() {
  size_t count = 0;
  if (elf_getshdrnum(elf_.get(), &count) != 0) return fail(elf_error("bad section headers"));
  if (count > kMaxSections) return fail("too many section headers");
  // libelf takes a table beyond the end for none, and with it went the notes.
  if (header_.e_shoff != 0 && count == 0) {
    return fail("the section headers reach beyond the end of the file");
  }
  if (count == 0) return {};
  size_t names = 0;
  if (elf_getshdrstrndx(elf_.get(), &names) != 0) return fail(elf_error("bad section names"));
  for (size_t i = 0; i < count; ++i) {
    Section section;
    Elf_Scn* scn = elf_getscn(elf_.get(), i);
    if (!scn || !gelf_getshdr(scn, &section.header)) return fail(elf_error("bad section headers"));
    const char* name = names ? elf_strptr(elf_.get(), names, section.header.sh_name) : nullptr;
    if (name) section.name = std::string(name, strnlen(name, 256));
    sections_.push_back(std::move(section));
  }
  return {};
}

const GElf_Phdr* ElfImage::segment(uint32_t type) const {
  const auto found = std::find_if(segments_.begin(), segments_.end(),
                                  [type](const GElf_Phdr& s) { return s.p_type == type; });
  return found == segments_.end() ? nullptr : &*found;
}

const Section* ElfImage::section(std::string_view name) const {
  const auto found = std::find_if(sections_.begin(), sections_.end(),
                                  [name](const Section& s) { return s.name == name; });
  return found == sections_.end() ? nullptr : &*found;
}

Status ElfImage::check_range(uint64_t offset, uint64_t size_bytes, std::string_view what) const {
  if (offset > size_bytes_ || size_bytes > size_bytes_ - offset) {
    return fail(std::string(what) + " reaches beyond the end of the file");
  }
  if (size_bytes > kMaxTableBytes) return fail(std::string(what) + " is larger than 256 MiB");
  return {};
}

Result<std::span<const uint8_t>> ElfImage::at_offset(uint64_t offset, uint64_t size_bytes,
                                                     std::string_view what) const {
  if (size_bytes == 0) return std::span<const uint8_t>{};
  if (Status range = check_range(offset, size_bytes, what); !range) return fail(range.error());
  const Elf_Data* data =
      elf_getdata_rawchunk(elf_.get(), static_cast<int64_t>(offset), size_bytes, ELF_T_BYTE);
  if (!data || !data->d_buf || data->d_size < size_bytes) {
    return fail(elf_error("cannot read " + std::string(what)));
  }
  return std::span<const uint8_t>(static_cast<const uint8_t*>(data->d_buf), size_bytes);
}

Result<std::span<const uint8_t>> ElfImage::at_address(uint64_t address, uint64_t size_bytes,
                                                      std::string_view what) const {
  if (size_bytes == 0) return std::span<const uint8_t>{};
  const auto offset = offset_of(address, size_bytes, what);
  if (!offset) return fail(offset.error());
  return at_offset(*offset, size_bytes, what);
}

Result<uint64_t> ElfImage::offset_of(uint64_t address, uint64_t size_bytes,
                                     std::string_view what) const {
  for (const GElf_Phdr& load : segments_) {
    if (load.p_type != PT_LOAD || address < load.p_vaddr) continue;
    const uint64_t delta = address - load.p_vaddr;
    if (delta >= load.p_filesz || size_bytes > load.p_filesz - delta) continue;
    if (load.p_offset > size_bytes_ || delta > size_bytes_ - load.p_offset) continue;
    return load.p_offset + delta;
  }
  return fail(std::string(what) + " lies in no loaded segment");
}

Status ElfImage::each_block(uint64_t address, uint64_t size_bytes, uint64_t entry_bytes,
                            std::string_view what,
                            const std::function<void(std::span<const uint8_t>)>& visit) const {
  if (!file_ || size_bytes <= kBlockBytes) {
    const auto bytes = at_address(address, size_bytes, what);
    if (!bytes) return fail(bytes.error());
    visit(*bytes);
    return {};
  }
  const auto offset = offset_of(address, size_bytes, what);
  if (!offset) return fail(offset.error());
  if (Status range = check_range(*offset, size_bytes, what); !range) return range;
  std::vector<uint8_t> block(kBlockBytes / entry_bytes * entry_bytes);
  for (uint64_t done = 0; done < size_bytes;) {
    const auto wanted = static_cast<size_t>(std::min<uint64_t>(block.size(), size_bytes - done));
    if (!read_all(file_->fd, *offset + done, std::span(block).first(wanted))) {
      return fail("cannot read " + std::string(what));
    }
    visit(std::span(block).first(wanted));
    done += wanted;
  }
  return {};
}

uint64_t ElfImage::bytes_from(uint64_t address) const {
  for (const GElf_Phdr& load : segments_) {
    if (load.p_type != PT_LOAD || address < load.p_vaddr) continue;
    const uint64_t delta = address - load.p_vaddr;
    if (delta >= load.p_filesz || load.p_offset > size_bytes_) continue;
    if (delta > size_bytes_ - load.p_offset) continue;
    return std::min(load.p_filesz - delta, size_bytes_ - load.p_offset - delta);
  }
  return 0;
}

const GElf_Phdr* ElfImage::load_of(uint64_t address, uint64_t size_bytes) const {
  for (const GElf_Phdr& load : segments_) {
    if (load.p_type != PT_LOAD || address < load.p_vaddr) continue;
    const uint64_t delta = address - load.p_vaddr;
    if (delta < load.p_memsz && size_bytes <= load.p_memsz - delta) return &load;
  }
  return nullptr;
}

}  // namespace gpuprof::elfgate

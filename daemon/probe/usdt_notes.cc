// SPDX-License-Identifier: Apache-2.0
#include "daemon/probe/usdt_notes.h"

#include <gelf.h>
#include <libelf.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

namespace gpuprof::probe {
namespace {

constexpr uint32_t kStapNoteType = 3;  // _SDT_NOTE_TYPE, sys/sdt.h
constexpr uint64_t kMaxNoteSectionBytes = 1 << 20;
constexpr size_t kMaxSections = 4096;
constexpr size_t kMaxSegments = 256;

#if defined(__x86_64__)
constexpr uint16_t kMachine = EM_X86_64;
constexpr std::string_view kArguments = "8@%rdi 4@%esi 8@%rdx";
constexpr std::array<uint8_t, 1> kNop = {0x90};
constexpr std::array<uint8_t, 5> kNop5 = {0x0f, 0x1f, 0x44, 0x00, 0x00};
#elif defined(__aarch64__)
constexpr uint16_t kMachine = EM_AARCH64;
constexpr std::string_view kArguments = "8@x0 4@x1 8@x2";
constexpr std::array<uint8_t, 4> kNop = {0x1f, 0x20, 0x03, 0xd5};
#endif

constexpr std::array<std::string_view, GPUPROF_PROBE_COUNT> kNames = {
    "?",         "process_v1", "launch_v1", "exec_v1", "pc_sample_v1", "name_v1",
    "module_v1", "device_v1",  "window_v1", "drop_v1", "autoarm"};

// Without these there is nothing to record.
constexpr std::array kRequired = {GPUPROF_PROBE_PROCESS, GPUPROF_PROBE_LAUNCH, GPUPROF_PROBE_EXEC,
                                  GPUPROF_PROBE_NAME, GPUPROF_PROBE_DROP};

struct ElfCloser {
  void operator()(Elf* elf) const { elf_end(elf); }
};
using ElfHandle = std::unique_ptr<Elf, ElfCloser>;

tl::unexpected<Error> corrupt(std::string message) {
  return fail(Code::kCorrupt, "shim file: " + std::move(message));
}

bool holds(std::span<const uint8_t> image, uint64_t offset, std::span<const uint8_t> bytes) {
  return offset <= image.size() && bytes.size() <= image.size() - offset &&
         std::equal(bytes.begin(), bytes.end(), image.begin() + static_cast<ptrdiff_t>(offset));
}

// File offset of a virtual address whose `bytes` bytes lie in the file part of one PT_LOAD that has
// all of `flags`.
std::optional<uint64_t> file_offset(std::span<const GElf_Phdr> segments, uint64_t file_bytes,
                                    uint64_t address, uint64_t bytes, uint32_t flags) {
  for (const GElf_Phdr& segment : segments) {
    if (segment.p_type != PT_LOAD || (segment.p_flags & flags) != flags) continue;
    if (address < segment.p_vaddr) continue;
    const uint64_t delta = address - segment.p_vaddr;
    if (delta >= segment.p_filesz || bytes > segment.p_filesz - delta) continue;
    if (segment.p_offset > file_bytes || delta > file_bytes - segment.p_offset) continue;
    if (bytes > file_bytes - segment.p_offset - delta) continue;
    return segment.p_offset + delta;
  }
  return std::nullopt;
}

// Takes the next NUL-terminated string off `rest`.
std::optional<std::string_view> take_string(std::string_view& rest) {
  const size_t end = rest.find('\0');
  if (end == std::string_view::npos) return std::nullopt;
  std::string_view text = rest.substr(0, end);
  rest.remove_prefix(end + 1);
  return text;
}

class Parser {
 public:
  explicit Parser(std::span<const uint8_t> image) : image_(image) {}

  [[nodiscard]] uint64_t unknown() const { return unknown_; }

  Result<std::vector<ProbeSite>> parse() {
    if (Status opened = open(); !opened) return tl::unexpected(opened.error());
    size_t section_count = 0;
    if (elf_getshdrnum(elf_.get(), &section_count) != 0) return corrupt("bad section table");
    if (section_count > kMaxSections) return corrupt("too many sections");
    find_base();
    for (Elf_Scn* section = nullptr; (section = elf_nextscn(elf_.get(), section)) != nullptr;) {
      GElf_Shdr header;
      if (!gelf_getshdr(section, &header)) return corrupt("bad section header");
      if (header.sh_type != SHT_NOTE || section_name(header) != ".note.stapsdt") continue;
      if (Status read = read_notes(section, header); !read) return tl::unexpected(read.error());
    }
    return finish();
  }

 private:
  Status open() {
    if (elf_version(EV_CURRENT) == EV_NONE) return fail(Code::kInternal, "libelf is too old");
    if (image_.size() < sizeof(Elf64_Ehdr) || std::memcmp(image_.data(), ELFMAG, SELFMAG) != 0) {
      return corrupt("not an ELF file");
    }
    // libelf takes char* for its writing modes; elf_memory reads only.
    elf_.reset(
        elf_memory(const_cast<char*>(reinterpret_cast<const char*>(image_.data())), image_.size()));
    GElf_Ehdr header;
    if (!elf_ || elf_kind(elf_.get()) != ELF_K_ELF || !gelf_getehdr(elf_.get(), &header)) {
      return corrupt("not an ELF file");
    }
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB ||
        header.e_machine != kMachine || header.e_type != ET_DYN) {
      return fail(Code::kUnsupported, "shim file: not a shared library of this machine");
    }
    size_t count = 0;
    if (elf_getphdrnum(elf_.get(), &count) != 0) return corrupt("bad program headers");
    if (count > kMaxSegments) return corrupt("too many program headers");
    for (size_t i = 0; i < count; i++) {
      GElf_Phdr segment;
      if (!gelf_getphdr(elf_.get(), static_cast<int>(i), &segment)) {
        return corrupt("bad program headers");
      }
      segments_.push_back(segment);
    }
    return {};
  }

  std::string_view section_name(const GElf_Shdr& header) {
    size_t index = 0;
    if (elf_getshdrstrndx(elf_.get(), &index) != 0) return {};
    const char* name = elf_strptr(elf_.get(), index, header.sh_name);
    return name ? name : "";
  }

  // prelink moves code without rewriting notes; the move shows in this section's address.
  void find_base() {
    for (Elf_Scn* section = nullptr; (section = elf_nextscn(elf_.get(), section)) != nullptr;) {
      GElf_Shdr header;
      if (gelf_getshdr(section, &header) && section_name(header) == ".stapsdt.base") {
        base_ = header.sh_addr;
        return;
      }
    }
  }

  Status read_notes(Elf_Scn* section, const GElf_Shdr& header) {
    if (header.sh_size > kMaxNoteSectionBytes) return corrupt("notes too large");
    Elf_Data* data = elf_getdata(section, nullptr);
    if (!data || !data->d_buf) return corrupt("unreadable notes");
    const char* bytes = static_cast<const char*>(data->d_buf);
    GElf_Nhdr note;
    size_t name_offset = 0;
    size_t desc_offset = 0;
    size_t offset = 0;
    while (offset < data->d_size) {
      offset = gelf_getnote(data, offset, &note, &name_offset, &desc_offset);
      if (offset == 0) return corrupt("truncated note");
      if (note.n_type != kStapNoteType ||
          std::string_view(bytes + name_offset, note.n_namesz) != std::string_view("stapsdt", 8)) {
        continue;
      }
      if (Status added = add_note({bytes + desc_offset, note.n_descsz}); !added) return added;
    }
    return {};
  }

  // desc: pc, base and semaphore addresses, then three NUL-terminated strings.
  Status add_note(std::string_view desc) {
    std::array<uint64_t, 3> addresses;
    if (desc.size() < sizeof(addresses)) return corrupt("truncated note");
    std::memcpy(addresses.data(), desc.data(), sizeof(addresses));
    desc.remove_prefix(sizeof(addresses));
    const auto provider = take_string(desc);
    const auto name = take_string(desc);
    const auto arguments = take_string(desc);
    if (!provider || !name || !arguments) return corrupt("truncated note");
    if (*provider != GPUPROF_USDT_PROVIDER) return {};
    const auto known = std::find(kNames.begin() + 1, kNames.end(), *name);
    if (known == kNames.end()) {
      ++unknown_;
      return {};
    }
    const auto probe = static_cast<gpuprof_probe>(known - kNames.begin());
    const std::string label(*name);
    if (*arguments != kArguments) return corrupt(label + " has unknown arguments");
    const uint64_t moved = base_ && addresses[1] ? *base_ - addresses[1] : 0;
    return add_site(probe, label, addresses[0] + moved, addresses[2] ? addresses[2] + moved : 0);
  }

  Status add_site(gpuprof_probe probe, const std::string& label, uint64_t pc, uint64_t semaphore) {
    if (sites_[probe].probe != GPUPROF_PROBE_INVALID) return corrupt(label + " has two sites");
    if (semaphore == 0) return corrupt(label + " has no semaphore");
    const auto code = file_offset(segments_, image_.size(), pc, kNop.size(), PF_X);
    const auto counter = file_offset(segments_, image_.size(), semaphore, 2, PF_W);
    if (!code) return corrupt(label + " lies outside the code");
    // The kernel increments a 16-bit word in one page.
    if (!counter || *counter % 2 != 0) return corrupt(label + "'s semaphore lies outside the data");
    if (!holds(image_, *code, kNop)) return corrupt(label + "'s site is not a nop");
    ProbeSite& site = sites_[probe];
    site.probe = probe;
    site.offset = *code;
    site.semaphore_offset = *counter;
#if defined(__x86_64__)
    site.has_nop5 = file_offset(segments_, image_.size(), pc + 1, kNop5.size(), PF_X) &&
                    holds(image_, *code + 1, kNop5);
#endif
    return {};
  }

  Result<std::vector<ProbeSite>> finish() {
    for (gpuprof_probe probe : kRequired) {
      if (sites_[probe].probe == GPUPROF_PROBE_INVALID) {
        return fail(Code::kNotFound, "shim file: no probe " + std::string(kNames[probe]) +
                                         " of provider " GPUPROF_USDT_PROVIDER
                                         "; is it a shim of this version?");
      }
    }
    std::vector<ProbeSite> found;
    for (const ProbeSite& site : sites_) {
      if (site.probe != GPUPROF_PROBE_INVALID) found.push_back(site);
    }
    return found;
  }

  std::span<const uint8_t> image_;
  ElfHandle elf_;
  std::vector<GElf_Phdr> segments_;
  std::optional<uint64_t> base_;
  uint64_t unknown_ = 0;
  std::array<ProbeSite, GPUPROF_PROBE_COUNT> sites_{};
};

}  // namespace

std::string_view probe_name(uint32_t probe) { return probe < kNames.size() ? kNames[probe] : "?"; }

Result<std::vector<uint8_t>> read_shim_file(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0) return fail_errno(Code::kIo, errno, "shim file: fstat");
  if (!S_ISREG(info.st_mode)) return corrupt("not a regular file");
  if (static_cast<uint64_t>(info.st_size) > kMaxShimBytes) return corrupt("larger than 64 MiB");
  std::vector<uint8_t> bytes(static_cast<size_t>(info.st_size));
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = pread(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno(Code::kIo, errno, "shim file: read");
    if (n == 0) break;  // truncated meanwhile
    done += static_cast<size_t>(n);
  }
  bytes.resize(done);
  return bytes;
}

Result<std::vector<ProbeSite>> parse_usdt_notes(std::span<const uint8_t> image, uint64_t* unknown) {
  Parser parser(image);
  auto sites = parser.parse();
  if (unknown != nullptr) *unknown = parser.unknown();
  return sites;
}

bool is_shim_file(int fd) {
  const auto image = read_shim_file(fd);
  return image && parse_usdt_notes(*image).has_value();
}

}  // namespace gpuprof::probe

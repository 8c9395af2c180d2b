// SPDX-License-Identifier: Apache-2.0
//
// ElfImage: an ELF file's headers, and its bytes by file offset or by address, as the dynamic
// loader sees them. Only 64-bit little-endian programs and libraries of x86-64 and aarch64.
#pragma once

#include <gelf.h>
#include <libelf.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/elfgate/result.h"

namespace gpuprof::elfgate {

struct Section {
  std::string name;
  GElf_Shdr header;
};

// Lifetime: what the spans point at lives as long as the image. One thread. Every length of the
// file is checked before it is used; nothing that the file claims is allocated beyond
// kMaxTableBytes.
class ElfImage {
 public:
  static constexpr uint64_t kMaxTableBytes = uint64_t{256} << 20;

  static Result<ElfImage> open(const std::string& path);
  // `bytes` must outlive the image.
  static Result<ElfImage> from_memory(std::span<const uint8_t> bytes);

  [[nodiscard]] const GElf_Ehdr& header() const { return header_; }
  [[nodiscard]] const std::vector<GElf_Phdr>& segments() const { return segments_; }
  [[nodiscard]] const std::vector<Section>& sections() const { return sections_; }
  [[nodiscard]] const GElf_Phdr* segment(uint32_t type) const;  // the first of that type
  [[nodiscard]] const Section* section(std::string_view name) const;

  // `what` names the bytes in the error.
  [[nodiscard]] Result<std::span<const uint8_t>> at_offset(uint64_t offset, uint64_t size_bytes,
                                                           std::string_view what) const;
  [[nodiscard]] Result<std::span<const uint8_t>> at_address(uint64_t address, uint64_t size_bytes,
                                                            std::string_view what) const;
  // The same in blocks of whole entries, for what is read once, in order: the bytes are gone when
  // `visit` returns.
  Status each_block(uint64_t address, uint64_t size_bytes, uint64_t entry_bytes,
                    std::string_view what,
                    const std::function<void(std::span<const uint8_t>)>& visit) const;
  // Bytes from `address` to the end of the file part of its segment; 0 where nothing is mapped.
  [[nodiscard]] uint64_t bytes_from(uint64_t address) const;
  // The PT_LOAD that maps all of [address, address + size_bytes), its zero-filled part included.
  [[nodiscard]] const GElf_Phdr* load_of(uint64_t address, uint64_t size_bytes) const;

 private:
  struct ElfCloser {
    void operator()(Elf* elf) const { elf_end(elf); }
  };

  ElfImage() = default;
  Status read_headers();
  Status read_sections();
  [[nodiscard]] Result<uint64_t> offset_of(uint64_t address, uint64_t size_bytes,
                                           std::string_view what) const;
  [[nodiscard]] Status check_range(uint64_t offset, uint64_t size_bytes,
                                   std::string_view what) const;

  // Declared before elf_, which reads from it.
  struct File {
    explicit File(int descriptor) : fd(descriptor) {}
    ~File();
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    int fd;
  };
  std::unique_ptr<File> file_;
  std::unique_ptr<Elf, ElfCloser> elf_;
  uint64_t size_bytes_ = 0;
  GElf_Ehdr header_{};
  std::vector<GElf_Phdr> segments_;
  std::vector<Section> sections_;
};

}  // namespace gpuprof::elfgate

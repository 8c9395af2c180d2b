// SPDX-License-Identifier: Apache-2.0
//
// ElfFile: one ELF object that processes map: its segments, build id and unwind rules.
#pragma once

#include <libelf.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/unwind/cfi_table.h"
#include "daemon/unwind/mapped_file.h"

namespace gpuprof::unwind {

// Purpose: everything that depends on the file alone, so that all processes share it. Only 64-bit
// little-endian x86-64 and aarch64 files. Headers go through libelf, on a guarded mapping
// (MappedFile); unwind rules are read by CfiTable. Threads: one at a time.
class ElfFile {
 public:
  struct Segment {  // PT_LOAD with PF_X
    uint64_t address = 0;
    uint64_t file_offset = 0;
    uint64_t file_size = 0;
    uint64_t memory_size = 0;
  };
  // Debug sections larger than this (decompressed) are not read: DWARF is decompressed to the heap.
  static constexpr uint64_t kMaxDecompressedBytes = uint64_t{128} << 20;
  static constexpr size_t kMaxBuildIdBytes = 64;

  static Result<std::shared_ptr<ElfFile>> from_file(MappedFile file);
  static Result<std::shared_ptr<ElfFile>> from_memory(std::vector<uint8_t> image);
  ~ElfFile();
  ElfFile(const ElfFile&) = delete;
  ElfFile& operator=(const ElfFile&) = delete;

  [[nodiscard]] Machine machine() const { return machine_; }
  [[nodiscard]] const std::string& build_id() const { return build_id_; }  // lower-case hex
  [[nodiscard]] std::span<const Segment> segments() const { return segments_; }
  // Load address - ELF address for a mapping of `file_offset` at `start`; nothing if no executable
  // segment of the file is mapped there.
  [[nodiscard]] std::optional<uint64_t> bias(uint64_t start, uint64_t file_offset) const;
  [[nodiscard]] CfiTable& cfi();
  [[nodiscard]] Elf* elf() const { return elf_.get(); }
  // Gives back the memory of the file's pages that were read so far, which are read again when they
  // are needed: a large library's symbols and rules would stay mapped, though each is needed once.
  // The headers stay, in which libelf notes what it has decompressed.
  void release_pages();
  // What the compressed sections take, which libdw decompresses all when it opens a file. Nothing
  // if that is more than kMaxDecompressedBytes, or not to be told.
  [[nodiscard]] std::optional<uint64_t> decompressed_bytes() const;

 private:
  struct EndElf {
    void operator()(Elf* elf) const { elf_end(elf); }
  };

  ElfFile() = default;
  static Result<std::shared_ptr<ElfFile>> parse(std::shared_ptr<ElfFile> file,
                                                std::span<uint8_t> bytes);
  [[nodiscard]] std::span<uint8_t> bytes() { return image_.empty() ? file_.bytes() : image_; }

  // Order matters: what is declared later is destroyed earlier and points into what is above.
  MappedFile file_;
  std::vector<uint8_t> image_;
  std::unique_ptr<Elf, EndElf> elf_;
  std::unique_ptr<CfiTable> cfi_;
  Machine machine_ = Machine::kX86_64;
  std::string build_id_;
  std::vector<Segment> segments_;
};

}  // namespace gpuprof::unwind

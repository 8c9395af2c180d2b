// SPDX-License-Identifier: Apache-2.0
//
// FdeFinder: which FDE of a section is about an address.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "daemon/unwind/cfi_section.h"

namespace gpuprof::unwind {

// The sorted table of .eh_frame_hdr (LSB 5, 10.6.2): pairs {first address, FDE's address}.
struct SearchTable {
  CfiSection header;  // .eh_frame_hdr
  uint64_t first = 0;
  uint64_t count = 0;
  uint8_t encoding = 0;
};

struct EhFrameHeader {
  uint64_t eh_frame = 0;  // ELF virtual address
  std::optional<SearchTable> table;
};

// Nothing if it is malformed, or its table larger than it is.
std::optional<EhFrameHeader> read_eh_frame_header(const CfiSection& header);

// Purpose: by binary search in the linker's table, else in an index of our own, made by one pass
// over the section at the first question. Where the table is wrong, functions have no rule.
// Memory: 16 bytes an FDE of an indexed section. Bounds: the pass ends after kMaxIndexedBytes or
// kMaxRecords; a Go program of 100,000 functions has 4 MiB. Threads: one at a time.
class FdeFinder {
 public:
  static constexpr uint64_t kMaxIndexedBytes = uint64_t{32} << 20;
  static constexpr size_t kMaxRecords = 512 << 10;

  FdeFinder(CfiSection section, std::optional<SearchTable> table)
      : section_(section), table_(table) {}

  std::optional<Fde> find(uint64_t address);
  [[nodiscard]] const CfiSection& section() const { return section_; }

 private:
  struct Entry {
    uint64_t start;
    uint32_t offset;
  };

  [[nodiscard]] std::optional<uint64_t> search_table(uint64_t address) const;
  [[nodiscard]] std::optional<uint64_t> search_index(uint64_t address) const;
  void build_index();

  CfiSection section_;
  std::optional<SearchTable> table_;
  bool is_indexed_ = false;
  std::vector<Entry> index_;  // by start, one each
};

}  // namespace gpuprof::unwind

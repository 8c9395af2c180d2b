// SPDX-License-Identifier: Apache-2.0
//
// LineTable: a cubin's .debug_line, decoded into an index from (section, offset) to a chain of
// lines.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/cubin/elf_image.h"

namespace gpuprof::cubin {

// A line, and the call that it was inlined through. NVIDIA's extension (CUDA 11.2) gives a row a
// context, which is the number of the row of its call site, and the name of the function that was
// inlined there. Equal ones of a sequence are stored once: the instructions of a loop share few.
struct LineLocation {
  uint32_t file = 0;      // of LineTable::files
  uint32_t line = 0;      // 0: unknown
  uint32_t caller = 0;    // location of the call site, plus 1; 0: not inlined
  uint32_t function = 0;  // of LineTable::functions: what was inlined; 0: unknown, or not inlined
};

// Immutable once built; views into the ElfImage's bytes, which outlive it. A row takes 8 bytes and
// a location 16, which measured 1.0 to 1.9 bytes per byte of nvcc's line tables.
class LineTable {
 public:
  // kCorrupt, in one line, for a table that contradicts itself. A unit of a DWARF version without
  // this meaning (5) is skipped.
  static Result<LineTable> build(const ElfImage& elf);

  // The last row at or before `offset` of the sequence that covers it, as a location's number.
  // `not_before`: start of the function that `offset` lies in; an earlier row is another
  // function's.
  [[nodiscard]] std::optional<uint32_t> find(uint32_t text, uint32_t offset,
                                             uint32_t not_before) const;

  [[nodiscard]] const LineLocation& location(uint32_t number) const { return locations_[number]; }
  [[nodiscard]] std::string_view file(const LineLocation& at) const { return files_[at.file]; }
  [[nodiscard]] std::string_view function(const LineLocation& at) const {
    return functions_[at.function];
  }
  [[nodiscard]] bool empty() const { return sequences_.empty(); }
  [[nodiscard]] bool has(uint32_t text) const {
    return first_sequence_[text] != first_sequence_[text + 1];
  }
  [[nodiscard]] uint64_t size_bytes() const;

 private:
  friend class LineTableBuilder;
  LineTable() = default;

  struct Row {
    uint32_t offset = 0;  // in the text section
    uint32_t location = 0;
  };
  struct Sequence {
    uint32_t text = 0;
    uint32_t begin = 0;
    uint32_t end = 0;
    uint32_t first_row = 0;
    uint32_t row_count = 0;
  };

  std::vector<Sequence> sequences_;       // by (text, begin)
  std::vector<uint32_t> first_sequence_;  // by text section, and the number of all
  std::vector<Row> rows_;
  std::vector<LineLocation> locations_;
  std::deque<std::string> files_;            // [0]: unknown
  std::vector<std::string_view> functions_;  // [0]: unknown
};

}  // namespace gpuprof::cubin

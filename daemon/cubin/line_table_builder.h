// SPDX-License-Identifier: Apache-2.0
//
// LineTableBuilder: takes the rows of a line program and makes a LineTable's sequences of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/cubin/line_table.h"

namespace gpuprof::cubin {

// A row as the line program gives it.
struct LineRow {
  uint64_t address = 0;
  uint64_t file = 0;  // number of a file as the builder returned it
  uint32_t line = 0;
  uint64_t context = 0;   // number of the call site's row in the sequence, from 1; 0: not inlined
  uint64_t function = 0;  // offset of the inlined function's name in .debug_str
};

// One sequence at a time: row()… end_sequence(). Time and memory are linear in what it is given,
// but for one bound: the index may not outgrow what real tables need by far.
class LineTableBuilder {
 public:
  explicit LineTableBuilder(const ElfImage& elf);

  // "directory/name", or `name` where that is absolute or there is no directory.
  Result<uint32_t> file(std::string_view directory, std::string_view name);
  Status row(const LineRow& row);
  // The rows' addresses lie in `text`, which ends the sequence at `end`; without a text section
  // (nothing says which function they belong to) they are dropped.
  Status end_sequence(const uint32_t* text, uint64_t end);
  LineTable finish();

 private:
  struct SequenceRow {
    uint64_t address = 0;
    uint32_t location = 0;
    uint32_t depth = 0;  // calls above it
  };

  Result<uint32_t> function_at(uint64_t offset);
  Status spend(uint64_t bytes);
  Status keep_rows(uint32_t text, uint64_t end);
  Result<uint32_t> intern(const LineLocation& location);
  void grow_slots();
  [[nodiscard]] uint64_t slot_of(const LineLocation& location) const;

  const ElfImage& elf_;
  uint64_t memory_left_;
  uint64_t path_work_left_;
  LineTable table_;
  std::vector<SequenceRow> sequence_;
  uint32_t first_location_ = 0;  // of the sequence
  std::vector<uint32_t> slots_;  // open hash of the sequence's locations: number + 1, 0 if free
  std::map<std::string_view, uint32_t> file_numbers_;        // keys: table_.files_
  std::unordered_map<uint64_t, uint32_t> function_numbers_;  // by offset in .debug_str
};

}  // namespace gpuprof::cubin

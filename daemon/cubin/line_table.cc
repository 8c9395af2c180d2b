// SPDX-License-Identifier: Apache-2.0
#include "daemon/cubin/line_table.h"

#include <algorithm>

#include "daemon/cubin/line_program.h"
#include "daemon/cubin/line_table_builder.h"

namespace gpuprof::cubin {

Result<LineTable> LineTable::build(const ElfImage& elf) {
  LineTableBuilder builder(elf);
  if (auto status = run_line_programs(elf, builder); !status) {
    return tl::unexpected(status.error());
  }
  return builder.finish();
}

std::optional<uint32_t> LineTable::find(uint32_t text, uint32_t offset, uint32_t not_before) const {
  const auto begin = sequences_.begin() + first_sequence_[text];
  const auto after =
      std::upper_bound(begin, sequences_.begin() + first_sequence_[text + 1], offset,
                       [](uint32_t value, const Sequence& at) { return value < at.begin; });
  if (after == begin) return std::nullopt;
  const Sequence& sequence = *(after - 1);
  if (offset >= sequence.end) return std::nullopt;
  const auto first = rows_.begin() + sequence.first_row;
  const auto row =
      std::upper_bound(first, first + sequence.row_count, offset,
                       [](uint32_t value, const Row& at) { return value < at.offset; });
  // The first row is at sequence.begin, which is not after `offset`.
  const Row& found = *(row - 1);
  if (found.offset < not_before) return std::nullopt;
  return found.location;
}

uint64_t LineTable::size_bytes() const {
  uint64_t size = first_sequence_.capacity() * sizeof(uint32_t) +
                  sequences_.capacity() * sizeof(Sequence) + rows_.capacity() * sizeof(Row) +
                  locations_.capacity() * sizeof(LineLocation) +
                  functions_.capacity() * sizeof(std::string_view);
  for (const std::string& file : files_) size += sizeof(std::string) + file.capacity();
  return size;
}

}  // namespace gpuprof::cubin

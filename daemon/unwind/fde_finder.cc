// SPDX-License-Identifier: Apache-2.0
#include "daemon/unwind/fde_finder.h"

#include <dwarf.h>

#include <algorithm>
#include <tuple>

namespace gpuprof::unwind {

std::optional<EhFrameHeader> read_eh_frame_header(const CfiSection& header) {
  CfiCursor at(header.bytes, 0, header.bytes.size());
  const auto version = at.fixed<uint8_t>();
  const auto pointer_encoding = at.fixed<uint8_t>();
  const auto count_encoding = at.fixed<uint8_t>();
  SearchTable table;
  table.encoding = at.fixed<uint8_t>();
  if (at.failed() || version != 1) return std::nullopt;
  const auto eh_frame = read_pointer(at, pointer_encoding, header.address, header.address);
  if (!eh_frame) return std::nullopt;
  if (count_encoding == DW_EH_PE_omit || table.encoding == DW_EH_PE_omit) return {{*eh_frame, {}}};
  const auto count = read_pointer(at, count_encoding, header.address, header.address);
  if (!count) return std::nullopt;
  if (*count == 0) return {{*eh_frame, {}}};
  const uint64_t entry_bytes = uint64_t{2} * pointer_bytes(table.encoding);
  if (entry_bytes == 0 || *count > (at.end() - at.offset()) / entry_bytes) return std::nullopt;
  table.header = header;
  table.first = at.offset();
  table.count = *count;
  return {{*eh_frame, table}};
}

std::optional<Fde> FdeFinder::find(uint64_t address) {
  if (!table_ && !is_indexed_) build_index();
  const auto offset = table_ ? search_table(address) : search_index(address);
  if (!offset) return std::nullopt;
  auto fde = fde_at(section_, *offset);
  if (fde && !fde->covers(address)) return std::nullopt;
  return fde;
}

// The last entry that begins at or before the address. An unsorted table gives some entry or none,
// after at most 64 steps.
std::optional<uint64_t> FdeFinder::search_table(uint64_t address) const {
  const unsigned value_bytes = pointer_bytes(table_->encoding);
  auto value = [&](uint64_t entry, bool second) {
    const uint64_t place = table_->first + (2 * entry + (second ? 1 : 0)) * value_bytes;
    CfiCursor at(table_->header.bytes, place, place + value_bytes);
    return read_pointer(at, table_->encoding, table_->header.address, table_->header.address);
  };
  uint64_t low = 0;
  uint64_t high = table_->count;
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    const auto start = value(middle, false);
    if (!start) return std::nullopt;
    if (*start <= address) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == 0) return std::nullopt;
  const auto fde = value(low - 1, true);
  if (!fde) return std::nullopt;
  return *fde - section_.address;
}

std::optional<uint64_t> FdeFinder::search_index(uint64_t address) const {
  const auto after =
      std::upper_bound(index_.begin(), index_.end(), address,
                       [](uint64_t wanted, const Entry& e) { return wanted < e.start; });
  if (after == index_.begin()) return std::nullopt;
  return std::prev(after)->offset;
}

void FdeFinder::build_index() {
  is_indexed_ = true;
  size_t records = 0;
  for (uint64_t offset = 0; offset < kMaxIndexedBytes && records < kMaxRecords; ++records) {
    const auto record = record_at(section_, offset);
    if (!record) break;
    if (!record->is_cie) {
      const auto fde = fde_at(section_, offset);
      if (fde && fde->start < fde->end) {
        index_.push_back({fde->start, static_cast<uint32_t>(offset)});
      }
    }
    offset = record->body.end;
  }
  // Of several for one start the section's first holds.
  std::sort(index_.begin(), index_.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.start, a.offset) < std::tie(b.start, b.offset);
  });
  const auto same = [](const Entry& a, const Entry& b) { return a.start == b.start; };
  index_.erase(std::unique(index_.begin(), index_.end(), same), index_.end());
  index_.shrink_to_fit();
}

}  // namespace gpuprof::unwind

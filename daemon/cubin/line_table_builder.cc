// SPDX-License-Identifier: Apache-2.0
#include "daemon/cubin/line_table_builder.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "proto/usdt_abi.h"

namespace gpuprof::cubin {
namespace {

// Of code, line table and names. While its sequence is read, a row with a line of its own takes 32
// bytes, for some 9 of nvcc's table and 28 of code; a hostile table can claim 40 with each byte.
constexpr uint64_t kMemoryPerImageByte = 3;
constexpr uint64_t kMemoryFree = 1 << 20;
// Paths repeat a directory, so a few bytes can claim the making of long ones.
constexpr uint64_t kPathWorkPerImageByte = 16;
constexpr uint64_t kPathWorkFree = 1 << 20;
// What a name costs beside its bytes: a view, a node of the map.
constexpr uint64_t kNameOverhead = 64;
// The deepest chain seen in CUB and CUTLASS is about 30.
constexpr uint32_t kMaxDepth = 1024;
// Longer ones are unknown, as for the kernel and the shim: each function of a profile has a copy.
constexpr size_t kMaxPathBytes = 4096;
constexpr size_t kMaxNameBytes = GPUPROF_NAME_MAX_BYTES;
constexpr size_t kMinSlots = 64;
// A hash table can be made to collide; a location that finds no slot in this many is stored twice.
constexpr unsigned kMaxProbes = 32;

}  // namespace

LineTableBuilder::LineTableBuilder(const ElfImage& elf) : elf_(elf), slots_(kMinSlots) {
  uint64_t image_bytes = elf.debug_line.size() + elf.debug_str.size();
  for (const TextSection& text : elf.texts) image_bytes += text.size_bytes;
  image_bytes = std::min<uint64_t>(image_bytes, elf.file_bytes);  // sections may overlap
  memory_left_ = image_bytes * kMemoryPerImageByte + kMemoryFree;
  path_work_left_ = image_bytes * kPathWorkPerImageByte + kPathWorkFree;
  table_.files_.emplace_back();
  table_.functions_.emplace_back();
}

Result<uint32_t> LineTableBuilder::file(std::string_view directory, std::string_view name) {
  std::string path;
  const bool joined = !directory.empty() && !name.starts_with('/') && !name.empty();
  const uint64_t size = name.size() + (joined ? directory.size() + 1 : 0);
  if (size > path_work_left_) return fail(Code::kCorrupt, "the line table's paths have no end");
  path_work_left_ -= size;
  if (size > kMaxPathBytes) return 0;
  if (joined) {
    path = directory;
    if (!path.ends_with('/')) path += '/';
  }
  path += name;
  if (path.empty()) return 0;
  const auto found = file_numbers_.find(path);
  if (found != file_numbers_.end()) return found->second;
  if (auto status = spend(size + kNameOverhead); !status) return tl::unexpected(status.error());
  const auto number = static_cast<uint32_t>(table_.files_.size());
  file_numbers_.emplace(table_.files_.emplace_back(std::move(path)), number);
  return number;
}

// A name that starts in the middle of another string is no name: 0, as for an unknown function.
Result<uint32_t> LineTableBuilder::function_at(uint64_t offset) {
  const auto names = elf_.debug_str;
  if (offset >= names.size() || names[offset] == std::byte{0}) return 0;
  if (offset != 0 && names[offset - 1] != std::byte{0}) return 0;
  const auto found = function_numbers_.find(offset);
  if (found != function_numbers_.end()) return found->second;
  if (auto status = spend(kNameOverhead); !status) return tl::unexpected(status.error());
  const auto* const text = reinterpret_cast<const char*>(names.data()) + offset;
  const size_t length = ::strnlen(text, names.size() - offset);
  uint32_t number = 0;
  if (length != names.size() - offset && length <= kMaxNameBytes) {
    number = static_cast<uint32_t>(table_.functions_.size());
    table_.functions_.emplace_back(text, length);
  }
  function_numbers_.emplace(offset, number);
  return number;
}

Status LineTableBuilder::spend(uint64_t bytes) {
  if (bytes > memory_left_) {
    return fail(Code::kCorrupt, "the line table claims more than its code can have");
  }
  memory_left_ -= bytes;
  return {};
}

uint64_t LineTableBuilder::slot_of(const LineLocation& at) const {
  const uint64_t low = at.line | uint64_t{at.file} << 32;
  const uint64_t high = at.caller | uint64_t{at.function} << 32;
  uint64_t hash = (low * 0x9e3779b97f4a7c15u) ^ ((high + 0x7f4a7c15u) * 0xc2b2ae3d27d4eb4fu);
  hash ^= hash >> 32;
  return (hash * 0x9e3779b97f4a7c15u) >> 32 & (slots_.size() - 1);
}

void LineTableBuilder::grow_slots() {
  slots_.assign(slots_.size() * 2, 0);
  for (uint32_t i = first_location_; i < table_.locations_.size(); ++i) {
    uint64_t slot = slot_of(table_.locations_[i]);
    for (unsigned probes = 0; probes < kMaxProbes; ++probes) {
      if (slots_[slot] == 0) {
        slots_[slot] = i + 1;
        break;
      }
      slot = (slot + 1) & (slots_.size() - 1);
    }
  }
}

Result<uint32_t> LineTableBuilder::intern(const LineLocation& at) {
  uint64_t slot = slot_of(at);
  for (unsigned probes = 0; probes < kMaxProbes && slots_[slot] != 0;
       ++probes, slot = (slot + 1) & (slots_.size() - 1)) {
    const LineLocation& other = table_.locations_[slots_[slot] - 1];
    if (other.line == at.line && other.file == at.file && other.caller == at.caller &&
        other.function == at.function) {
      return slots_[slot] - 1;
    }
  }
  if (auto status = spend(sizeof(LineLocation)); !status) return tl::unexpected(status.error());
  const auto number = static_cast<uint32_t>(table_.locations_.size());
  table_.locations_.push_back(at);
  if (slots_[slot] == 0) slots_[slot] = number + 1;
  if ((number - first_location_) * 2 > slots_.size()) grow_slots();
  return number;
}

Status LineTableBuilder::row(const LineRow& row) {
  SequenceRow added{row.address, 0, 0};
  LineLocation at{static_cast<uint32_t>(row.file), row.line, 0, 0};
  if (row.context != 0) {
    // nvcc emits the row of a call site before the rows that were inlined there, which is also what
    // makes a cycle impossible.
    if (row.context > sequence_.size()) {
      return fail(Code::kCorrupt, "the line table has a call site beyond the rows before it");
    }
    const SequenceRow& call_site = sequence_[row.context - 1];
    at.caller = call_site.location + 1;
    const auto function = function_at(row.function);
    if (!function) return tl::unexpected(function.error());
    at.function = *function;
    added.depth = call_site.depth + 1;
    if (added.depth > kMaxDepth) {
      return fail(Code::kCorrupt, "the line table has more than " + std::to_string(kMaxDepth) +
                                      " nested inlined calls");
    }
  }
  if (auto status = spend(sizeof(SequenceRow)); !status) return status;
  auto location = intern(at);
  if (!location) return tl::unexpected(location.error());
  added.location = *location;
  sequence_.push_back(added);
  return {};
}

Status LineTableBuilder::keep_rows(uint32_t text, uint64_t end) {
  const auto by_address = [](const SequenceRow& a, const SequenceRow& b) {
    return a.address < b.address;
  };
  if (!std::is_sorted(sequence_.begin(), sequence_.end(), by_address)) {
    std::stable_sort(sequence_.begin(), sequence_.end(), by_address);
  }
  if (end > elf_.texts[text].size_bytes || sequence_.back().address > end) {
    return fail(Code::kCorrupt, "the line table reaches past the end of its function's section");
  }
  const size_t first_row = table_.rows_.size();
  for (size_t i = 0; i < sequence_.size(); ++i) {
    const SequenceRow& row = sequence_[i];
    // Only the last of several rows at one address is what an instruction there belongs to; the
    // ones before it are its call sites.
    if (i + 1 < sequence_.size() && sequence_[i + 1].address == row.address) continue;
    if (table_.rows_.size() > first_row && table_.rows_.back().location == row.location) continue;
    if (auto status = spend(sizeof(LineTable::Row)); !status) return status;
    table_.rows_.push_back({static_cast<uint32_t>(row.address), row.location});
  }
  table_.sequences_.push_back({text, static_cast<uint32_t>(sequence_.front().address),
                               static_cast<uint32_t>(end), static_cast<uint32_t>(first_row),
                               static_cast<uint32_t>(table_.rows_.size() - first_row)});
  return {};
}

Status LineTableBuilder::end_sequence(const uint32_t* text, uint64_t end) {
  if (text != nullptr && !sequence_.empty()) {
    if (auto status = keep_rows(*text, end); !status) return status;
  } else {
    memory_left_ += (table_.locations_.size() - first_location_) * sizeof(LineLocation);
    table_.locations_.resize(first_location_);
  }
  memory_left_ += sequence_.size() * sizeof(SequenceRow);
  sequence_.clear();
  first_location_ = static_cast<uint32_t>(table_.locations_.size());
  slots_.assign(kMinSlots, 0);
  return {};
}

LineTable LineTableBuilder::finish() {
  std::stable_sort(table_.sequences_.begin(), table_.sequences_.end(),
                   [](const auto& a, const auto& b) {
                     return a.text != b.text ? a.text < b.text : a.begin < b.begin;
                   });
  table_.first_sequence_.assign(elf_.texts.size() + 1, 0);
  for (const auto& sequence : table_.sequences_) ++table_.first_sequence_[sequence.text + 1];
  std::partial_sum(table_.first_sequence_.begin(), table_.first_sequence_.end(),
                   table_.first_sequence_.begin());
  table_.sequences_.shrink_to_fit();
  table_.rows_.shrink_to_fit();
  table_.locations_.shrink_to_fit();
  table_.functions_.shrink_to_fit();
  return std::move(table_);
}

}  // namespace gpuprof::cubin

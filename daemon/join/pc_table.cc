// SPDX-License-Identifier: Apache-2.0
#include "daemon/join/pc_table.h"

namespace gpuprof::join {

uint32_t PcTable::source_of(const PcSource& source, uint32_t& used) {
  if (last_id_ != Sources::kNone && source == last_source_) return last_id_;
  uint32_t id = sources_.find(source);
  if (id == Sources::kNone) {
    if (used >= limits_.max_pc_sources_per_process || sources_.size() >= limits_.max_pc_sources)
      return Sources::kNone;
    ++used;
    id = sources_.insert(source).first;
  }
  last_source_ = source;
  last_id_ = id;
  return id;
}

PcTable::Added PcTable::add(const PcSource& source, uint32_t pc_offset, uint32_t stall_index,
                            uint64_t samples, uint32_t& used_sources, uint32_t& used_entries) {
  const uint32_t id = source_of(source, used_sources);
  if (id == Sources::kNone) return Added::kRefused;
  PcKey key{id, pc_offset, stall_index};
  uint32_t at = entries_.find(key);
  Added added = Added::kWhole;
  const auto widened = [](uint32_t limit) { return uint64_t{limit} + limit / 4; };
  if (at == Entries::kNone && (used_entries >= limits_.max_pc_entries_per_process ||
                               entries_.size() >= limits_.max_pc_entries)) {
    added = Added::kInFunction;
    key.pc_offset = kFolded;
    at = entries_.find(key);
    if (at == Entries::kNone && (used_entries >= widened(limits_.max_pc_entries_per_process) ||
                                 entries_.size() >= widened(limits_.max_pc_entries)))
      return Added::kRefused;
  }
  if (at == Entries::kNone) {
    ++used_entries;
    at = entries_.insert(key).first;
  }
  entries_[at].value += samples;
  return added;
}

void PcTable::clear() {
  targets_.clear();
  sources_.clear();
  entries_.clear();
  last_id_ = Sources::kNone;
}

}  // namespace gpuprof::join

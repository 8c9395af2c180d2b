// SPDX-License-Identifier: Apache-2.0
#include "daemon/join/row_index.h"

#include <algorithm>

namespace gpuprof::join {
namespace {

// A sampled execution had a launch, after the arm. These had none, and are none of it.
bool had_no_launch(const Row& row) {
  return row.match == Match::kUnmatched &&
         (row.reason == Unmatched::kBeforeArm || row.reason == Unmatched::kDeviceLaunched);
}

}  // namespace

RowIndex::RowIndex(const std::vector<Row>& rows, std::span<const uint32_t> class_of) {
  for (uint32_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    if (row.kind != GPUPROF_KIND_KERNEL) continue;
    add({row.name_id, row.process, 0, 0, kAnywhere}, i);
    add({row.name_id, row.process, row.device_id, 0, kDevice}, i);
    add({row.name_id, row.process, row.device_id, row.context_id, kContext}, i);
    if (row.match == Match::kExact) {
      exact_[exact_.insert({class_of[i], row.stack, row.tid}).first].value = i;
    } else if (!had_no_launch(row)) {
      add({class_of[i], 0, 0, 0, kClass}, i);
    }
  }
  for (uint32_t at = 0; at < sets_.size(); ++at) {
    RowSet& set = sets_[at].value;
    std::stable_sort(set.rows.begin(), set.rows.end(),
                     [&](uint32_t a, uint32_t b) { return rows[a].time_ns > rows[b].time_ns; });
    const Row& first = rows[set.rows.front()];
    set.has_several_paths = std::any_of(set.rows.begin(), set.rows.end(), [&](uint32_t i) {
      return rows[i].stack != first.stack || (rows[i].graph_id == 0) != (first.graph_id == 0);
    });
  }
}

uint32_t RowIndex::find_exact(const PcTarget& target) const {
  const uint32_t at = exact_.find(target);
  return at == decltype(exact_)::kNone ? kNone : exact_[at].value;
}

const RowSet* RowIndex::find_inexact(uint32_t class_id) const {
  return find({class_id, 0, 0, 0, kClass});
}

}  // namespace gpuprof::join

// SPDX-License-Identifier: Apache-2.0
//
// RowIndex: the rows of a window by what a PC sample can know of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "daemon/join/flat_index.h"
#include "daemon/join/joiner.h"
#include "daemon/join/pc_table.h"

namespace gpuprof::join {

struct RowSet {
  std::vector<uint32_t> rows;  // most GPU time first
  bool has_several_paths = false;
};

// Made once, of finished rows. What find_*() gives stays valid for the index's life.
class RowIndex {
 public:
  RowIndex(const std::vector<Row>& rows, std::span<const uint32_t> class_of);

  // The executions of a kernel. Null: there are none.
  [[nodiscard]] const RowSet* find_kernel(uint32_t process, uint64_t name_id) const {
    return find({name_id, process, 0, 0, kAnywhere});
  }
  [[nodiscard]] const RowSet* find_on_device(uint32_t process, uint64_t name_id,
                                             uint32_t device_id) const {
    return find({name_id, process, device_id, 0, kDevice});
  }
  [[nodiscard]] const RowSet* find_in_context(uint32_t process, uint64_t name_id,
                                              uint32_t device_id, uint32_t context_id) const {
    return find({name_id, process, device_id, context_id, kContext});
  }
  // The row of a launch with a stack. kNone: it has none.
  static constexpr uint32_t kNone = UINT32_MAX;
  [[nodiscard]] uint32_t find_exact(const PcTarget& target) const;
  // The executions of a class whose launches have no stack of their own; not those without a
  // launch: from before the arm, or launched by the device.
  [[nodiscard]] const RowSet* find_inexact(uint32_t class_id) const;

 private:
  enum Level : uint32_t { kAnywhere, kDevice, kContext, kClass };
  struct Key {
    uint64_t name_id;
    uint32_t process, device_id, context_id, level;
  };

  [[nodiscard]] const RowSet* find(const Key& key) const {
    const uint32_t at = sets_.find(key);
    return at == decltype(sets_)::kNone ? nullptr : &sets_[at].value;
  }
  void add(const Key& key, uint32_t row) {
    sets_[sets_.insert(key).first].value.rows.push_back(row);
  }

  FlatIndex<Key, RowSet> sets_;
  FlatIndex<PcTarget, uint32_t> exact_;
};

}  // namespace gpuprof::join

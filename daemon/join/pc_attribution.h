// SPDX-License-Identifier: Apache-2.0
//
// PcAttribution: the PC samples of a window meet the call paths of their kernels' executions.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "daemon/join/device_source.h"
#include "daemon/join/flat_index.h"
#include "daemon/join/joiner.h"
#include "daemon/join/pc_table.h"
#include "daemon/join/process_table.h"
#include "daemon/join/row_index.h"
#include "daemon/join/window.h"

namespace gpuprof::join {

// One use: run(). The samples of a function are split over the rows that it joined in proportion to
// their GPU time, in whole numbers, and each row's time and executions over its samples: every sum
// stays what it was (design.md, sections 6 and 7).
class PcAttribution {
 public:
  // `frames` and `device` may be null: then nothing has a name.
  PcAttribution(const PcTable& table, const Window& window, const ProcessTable& processes,
                const JoinerLimits& limits, FrameSource* frames, DeviceSource* device);

  // `class_of` tells the class of each of the result's rows, whose processes are slots. Adds the PC
  // parts of the result, and rows without executions for samples that joined none; settles the
  // PcAccounting of each process.
  void run(std::span<const uint32_t> class_of, JoinResult& result, JoinStats& stats);

 private:
  // One instruction and stall reason of a source.
  struct CellKey {
    uint32_t source, pc_offset, stall;
  };
  struct Cell {
    uint64_t samples = 0;
    uint64_t stall_samples = 0;
  };
  using Cells = FlatIndex<CellKey, Cell>;
  // What a source joined.
  struct Join {
    PcAttrib attrib = PcAttrib::kNone;
    const RowSet* set = nullptr;
    uint32_t row = 0;  // the only one, where `set` is null

    [[nodiscard]] size_t size() const { return set == nullptr ? 1 : set->rows.size(); }
    [[nodiscard]] uint32_t at(size_t i) const { return set == nullptr ? row : set->rows[i]; }
  };
  struct StallKey {
    uint32_t process, device_id, stall_index;
  };
  struct Stall {
    StallKind kind = StallKind::kUnnamed;
    uint32_t id = 0;  // index into JoinResult::stalls
  };
  struct KernelKey {
    uint64_t kernel;  // name id
    uint64_t process;
  };
  struct ExtraKey {
    uint64_t name_id;
    uint32_t process, device_id, context_id, stack, tid, class_id;
  };

  void classify(JoinResult& result);
  std::string stall_text(const PcSource& source, uint32_t stall_index);
  Stall stall_of(const PcSource& source, uint32_t stall_index, JoinResult& result);
  void order_cells();
  std::shared_ptr<const cubin::Image> image_of(const PcSource& source);
  std::string name_of(const PcSource& source, uint64_t name_id);
  uint64_t kernel_of(const PcSource& source);
  [[nodiscard]] std::vector<uint32_t> sources_by_image() const;
  void join_sources(JoinResult& result);
  bool runs_in(const PcSource& source, uint64_t kernel);
  Join join_target(const PcTarget& target, JoinResult& result);
  Join join_kernel(const PcSource& source, uint64_t kernel, JoinResult& result);
  Join join_nothing(const PcSource& source, uint64_t kernel, JoinResult& result);
  uint32_t extra_row(const ExtraKey& key, const Row& row, JoinResult& result);
  [[nodiscard]] bool has_cells(uint32_t source) const {
    return cell_begin_[source] != cell_begin_[source + 1];
  }
  [[nodiscard]] uint64_t need_of(uint32_t source) const;
  [[nodiscard]] std::vector<uint64_t> make_rooms() const;
  std::vector<Cells::Entry> cells_of(uint32_t source, size_t most, JoinStats& stats) const;
  void split(uint32_t source, uint64_t room, JoinResult& result, JoinStats& stats);
  static void share_out(JoinResult& result);

  const PcTable& table_;
  const Window& window_;
  const ProcessTable& processes_;
  const JoinerLimits& limits_;
  FrameSource* frames_;
  DeviceSource* device_;

  Cells cells_;
  std::vector<uint32_t> cell_begin_, cell_order_;  // by source, most samples first
  FlatIndex<StallKey, Stall> stall_names_;
  std::map<std::string, uint32_t> stall_ids_;
  FlatIndex<KernelKey, std::pair<uint64_t, bool>> modules_;  // a cubin, and whether it has others
  std::vector<Join> joins_;                                  // by source
  std::optional<RowIndex> index_;
  FlatIndex<ExtraKey, uint32_t> extra_rows_;
};

}  // namespace gpuprof::join

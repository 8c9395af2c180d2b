// SPDX-License-Identifier: Apache-2.0
//
// PcJoiner: the joiner's part for PC samples and sampling windows.
#pragma once

#include <cstdint>
#include <span>

#include "daemon/join/grace_ring.h"
#include "daemon/join/joiner.h"
#include "daemon/join/pc_table.h"
#include "daemon/join/process_table.h"
#include "daemon/join/serialized_executions.h"
#include "daemon/join/window.h"
#include "proto/usdt_abi.h"

namespace gpuprof::join {

// Samples with a correlation wait for their execution and its launch; the others are summed at
// once. Borrows what the joiner owns. One thread.
class PcJoiner {
 public:
  PcJoiner(const JoinerLimits& limits, ProcessTable& processes, Window& window, JoinStats& stats)
      : limits_(limits), processes_(processes), window_(window), stats_(stats), table_(limits) {}

  void add(uint32_t slot, std::span<const gpuprof_pc_sample_v1> samples);
  // A kernel that PC samples may name by its correlation.
  void note_execution(const ClassKey& key, uint64_t launch, uint64_t fingerprint);
  void advance(uint64_t now_ns);
  // Nothing waits any more; the rows of `spread` are about to become the result's.
  void resolve_all();
  [[nodiscard]] const PcTable& table() const { return table_; }
  void reset_window() { table_.clear(); }
  void forget(uint32_t slot) { executions_.forget(slot); }

 private:
  struct Waiting {
    uint64_t launch;
    uint64_t since_ns;
    PcSource source;
    uint32_t pc_offset;
    uint32_t stall_index;
    uint32_t samples;
  };

  // False: not all is known yet that may become known.
  bool resolve(const Waiting& sample, bool is_final);
  void count(const PcSource& source, const Waiting& sample);

  const JoinerLimits& limits_;
  ProcessTable& processes_;
  Window& window_;
  JoinStats& stats_;
  PcTable table_;
  SerializedExecutions executions_;
  GraceRing<Waiting> waiting_;
  uint64_t now_ns_ = 0;
};

}  // namespace gpuprof::join

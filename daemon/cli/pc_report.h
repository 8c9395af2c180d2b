// SPDX-License-Identifier: Apache-2.0
//
// What the report tells about PC sampling.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "daemon/cli/device_modules.h"
#include "daemon/cli/json_writer.h"
#include "daemon/cli/options.h"
#include "daemon/cubin/store.h"
#include "daemon/join/assemble.h"
#include "daemon/join/joiner.h"
#include "daemon/target/gpu_arbiter.h"
#include "daemon/target/shim_status.h"

namespace gpuprof::cli {

using PcCounters = std::array<uint64_t, 16>;  // by enum gpuprof_pc_counter

// "off", "continuous", "serialized": the words of --pc-sampling.
const char* pc_tier_name(gpuprof_tier tier);

// What became of the PC samples of one process, or of all together.
struct PcResult {
  join::PcAccounting accounting;
  join::WindowCounts windows;
  join::SourceCounts sources;
  ModuleCounts cubins;
  uint32_t period = 0;  // log2 cycles, of the windows; 0: unknown

  PcResult& operator+=(const PcResult& other);
};

// The members of an open object: records and samples, how they were attributed, their source lines.
void write_pc_samples(JsonWriter& json, const join::PcAccounting& account,
                      const join::SourceCounts& sources);

// The members of an open object: samples, windows, cubins.
void write_pc_result(JsonWriter& json, const PcResult& result);

// The member pc_sampling of a target's open object: what was asked, what the shim says, the result.
// The shim's counters are told since we came: less what stood in `before`. `gpus`: what it sampled,
// and what others had.
void write_pc_sampling(JsonWriter& json, const Options& options, const target::PcStatus& pc,
                       const PcCounters& before, const std::vector<target::GpuUse>& gpus,
                       const PcResult& result);

// A GPU that process `pid` wanted to sample and another one had, in one line with what to do;
// empty: none had it, or not for long.
std::string gpu_line(uint32_t pid, const target::GpuUse& use);

// One object.
void write_store(JsonWriter& json, const cubin::StoreStats& stats);

// Rows of the summary for people: name and text.
std::vector<std::pair<const char*, std::string>> pc_rows(const PcResult& result);

}  // namespace gpuprof::cli

// SPDX-License-Identifier: Apache-2.0
//
// What the report tells about PC sampling.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "daemon/cli/json_writer.h"
#include "daemon/cli/options.h"
#include "daemon/target/shim_status.h"

namespace gpuprof::cli {

// "off", "continuous", "serialized": the words of --pc-sampling.
const char* pc_tier_name(gpuprof_tier tier);

// What the shim counted since we came: `pc` less what stood in `before`.
std::array<uint64_t, 16> pc_counters_since(const target::PcStatus& pc,
                                           const std::array<uint64_t, 16>& before);

// The member pc_sampling of a target's open object.
void write_pc_sampling(JsonWriter& json, const Options& options, const target::PcStatus& pc,
                       const std::array<uint64_t, 16>& before);

}  // namespace gpuprof::cli

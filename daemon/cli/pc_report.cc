// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/pc_report.h"

#include <iterator>

namespace gpuprof::cli {
namespace {

// In the order of enum gpuprof_pc_counter.
constexpr const char* kCounterNames[] = {"samples",
                                         "windows",
                                         "drains",
                                         "enables",
                                         "disables",
                                         "healed",
                                         "contexts_refused",
                                         "graph_refused",
                                         "cooperative_refused",
                                         "collective_refused",
                                         "skipped_capture",
                                         "skipped_guard"};
static_assert(std::size(kCounterNames) == GPUPROF_PC_COUNT_SKIPPED_GUARD + 1);

}  // namespace

const char* pc_tier_name(gpuprof_tier tier) {
  switch (tier) {
    case GPUPROF_TIER_CONTINUOUS:
      return "continuous";
    case GPUPROF_TIER_SERIALIZED:
      return "serialized";
    default:
      return "off";
  }
}

std::array<uint64_t, 16> pc_counters_since(const target::PcStatus& pc,
                                           const std::array<uint64_t, 16>& before) {
  std::array<uint64_t, 16> out{};
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = pc.counters[i] > before[i] ? pc.counters[i] - before[i] : 0;
  return out;
}

void write_pc_sampling(JsonWriter& json, const Options& options, const target::PcStatus& pc,
                       const std::array<uint64_t, 16>& before) {
  json.key("pc_sampling");
  json.begin_object();
  json.field("asked", pc_tier_name(options.tier));
  json.field("state", target::pc_state_name(pc.state));
  json.field("reason", target::pc_reason_name(pc.reason));
  if (!pc.reason_text.empty()) json.field("text", pc.reason_text);
  json.field("period_log2_cycles", pc.period);
  json.field("contexts", pc.contexts);
  const std::array<uint64_t, 16> counted = pc_counters_since(pc, before);
  json.key("shim");  // the shim's own counts
  json.begin_object();
  for (size_t i = 0; i < std::size(kCounterNames); ++i) json.field(kCounterNames[i], counted[i]);
  json.end_object();
  json.end_object();
}

}  // namespace gpuprof::cli

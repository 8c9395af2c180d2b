// SPDX-License-Identifier: Apache-2.0
#include "daemon/target/shim_status.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "daemon/target/text.h"

namespace gpuprof::target {
namespace {

// CUPTI's limits (CUpti_PCSamplingConfigurationInfo, samplingPeriodData).
constexpr uint32_t kMinPeriod = 5, kMaxPeriod = 31;

template <size_t N>
std::string text_of(const char (&field)[N]) {
  return printable(std::string_view(field, N));
}

PcStatus decode_pc(const gpuprof_status_page& page) {
  PcStatus out;
  if (page.pc_state < GPUPROF_PC_STATE_COUNT)
    out.state = static_cast<gpuprof_pc_state>(page.pc_state);
  if (page.pc_reason < GPUPROF_PC_REASON_COUNT)
    out.reason = static_cast<gpuprof_pc_reason>(page.pc_reason);
  if (page.pc_period >= kMinPeriod && page.pc_period <= kMaxPeriod) out.period = page.pc_period;
  out.contexts = page.pc_contexts;
  std::copy_n(page.pc_counters, out.counters.size(), out.counters.begin());
  out.reason_text = text_of(page.pc_reason_text);
  out.claims = decode_claims(page);
  return out;
}

}  // namespace

const char* state_name(gpuprof_state state) {
  switch (state) {
    case GPUPROF_STATE_DECLINED:
      return "declined";
    case GPUPROF_STATE_IDLE:
      return "idle";
    case GPUPROF_STATE_ARMING:
      return "arming";
    case GPUPROF_STATE_TRACING:
      return "tracing";
    case GPUPROF_STATE_TRACING_PC:
      return "tracing+pc";
    case GPUPROF_STATE_DISARMING:
      return "disarming";
    case GPUPROF_STATE_BUSY:
      return "busy";
    case GPUPROF_STATE_INERT:
      return "inert";
    case GPUPROF_STATE_INVALID:
    case GPUPROF_STATE_COUNT:
      break;
  }
  return "unknown";
}

const char* cupti_origin_name(gpuprof_cupti_origin origin) {
  constexpr const char* kNames[] = {"unknown", "application", "shim"};
  static_assert(std::size(kNames) == GPUPROF_CUPTI_ORIGIN_COUNT);
  return origin < GPUPROF_CUPTI_ORIGIN_COUNT ? kNames[origin] : "unknown";
}

const char* pc_state_name(gpuprof_pc_state state) {
  constexpr const char* kNames[] = {"off", "waiting", "on", "refused"};
  static_assert(std::size(kNames) == GPUPROF_PC_STATE_COUNT);
  return state < GPUPROF_PC_STATE_COUNT ? kNames[state] : "off";
}

const char* pc_reason_name(gpuprof_pc_reason reason) {
  constexpr const char* kNames[] = {
      "none",  "cupti-too-old", "missing-symbol", "gpu-too-old", "privilege",     "mps",
      "mig",   "vgpu",          "confidential",   "wsl",         "counters-busy", "out-of-memory",
      "graph", "cooperative",   "collective",     "failed",      "gpu-taken"};
  static_assert(std::size(kNames) == GPUPROF_PC_REASON_COUNT);
  return reason < GPUPROF_PC_REASON_COUNT ? kNames[reason] : "unknown";
}

PcClaims decode_claims(const gpuprof_status_page& page) {
  constexpr uint32_t kPlaces = (1u << GPUPROF_PC_GPUS_MAX) - 1;
  PcClaims out;
  out.heeds_grants = page.pc_grant_modes > GPUPROF_PC_GRANT_LISTED;
  out.serial = page.pc_grant_serial;
  out.wanted = page.pc_wanted & kPlaces;
  out.held = page.pc_held & kPlaces;
  for (size_t i = 0; i < out.gpus.size(); ++i)
    std::copy_n(page.pc_gpus[i].bytes, out.gpus[i].size(), out.gpus[i].begin());
  return out;
}

ShimStatus decode_status(const gpuprof_status_page& page) {
  ShimStatus out;
  if (page.state < GPUPROF_STATE_COUNT) out.state = static_cast<gpuprof_state>(page.state);
  if (page.reason < GPUPROF_REASON_COUNT) out.reason = static_cast<gpuprof_reason>(page.reason);
  if (page.tier <= GPUPROF_TIER_SERIALIZED) out.tier = static_cast<gpuprof_tier>(page.tier);
  out.epoch = page.epoch;
  out.heartbeat_ns = page.heartbeat_ns;
  out.cupti_version = page.cupti_version;
  if (page.cupti_origin < GPUPROF_CUPTI_ORIGIN_COUNT)
    out.cupti_origin = static_cast<gpuprof_cupti_origin>(page.cupti_origin);
  out.driver_version = page.driver_version;
  out.arms = page.arms;
  out.disarms = page.disarms;
  out.off_since_ns = page.off_since_ns;
  out.off_ns = page.off_ns;
  out.module_count = page.module_count;
  out.buffers_outstanding = page.buffers_outstanding;
  out.eager = page.subscribe_mode == 1;
  std::copy_n(page.probe_totals, out.probe_totals.size(), out.probe_totals.begin());
  std::copy_n(page.drop_totals, out.drop_totals.size(), out.drop_totals.begin());
  out.reason_text = text_of(page.reason_text);
  out.cupti_path = text_of(page.cupti_path);
  out.libcuda_path = text_of(page.libcuda_path);
  out.kernel_driver_version = text_of(page.kernel_driver_version);
  out.unknown_knobs = text_of(page.unknown_knobs);
  out.pc = decode_pc(page);
  return out;
}

}  // namespace gpuprof::target

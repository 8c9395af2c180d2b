// SPDX-License-Identifier: Apache-2.0
//
// ShimStatus: what the shim says of itself on the status page (proto/memfd_layout.h).
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "daemon/target/pc_grant.h"
#include "proto/memfd_layout.h"

namespace gpuprof::target {

// What became of PC sampling in this process.
struct PcStatus {
  gpuprof_pc_state state = GPUPROF_PC_OFF;  // an unknown one reads as off
  gpuprof_pc_reason reason = GPUPROF_PC_REASON_NONE;
  uint32_t period = 0;                  // log2 cycles as CUPTI has it, 0: never enabled
  uint32_t contexts = 0;                // sampled now
  std::array<uint64_t, 16> counters{};  // by enum gpuprof_pc_counter, since the process started
  std::string reason_text;
  PcClaims claims;
};

// The status page, validated: enums in range, strings printable, counters as the target wrote them.
struct ShimStatus {
  gpuprof_state state = GPUPROF_STATE_INVALID;
  gpuprof_reason reason = GPUPROF_REASON_NONE;
  gpuprof_tier tier = GPUPROF_TIER_OFF;
  uint32_t epoch = 0;
  uint64_t heartbeat_ns = 0;
  uint32_t cupti_version = 0;
  gpuprof_cupti_origin cupti_origin = GPUPROF_CUPTI_UNKNOWN;
  uint32_t driver_version = 0;
  uint32_t arms = 0;
  uint32_t disarms = 0;
  uint64_t off_since_ns = 0;  // recording stopped then; 0: it goes on, or never began
  uint64_t off_ns = 0;        // not recorded, from the first arm to the latest one
  uint32_t module_count = 0;
  uint32_t buffers_outstanding = 0;
  bool eager = false;  // it holds CUPTI's subscriber while idle, too
  std::array<uint64_t, 16> probe_totals{};
  std::array<uint64_t, 32> drop_totals{};
  std::string reason_text;
  std::string cupti_path;
  std::string libcuda_path;
  std::string kernel_driver_version;
  std::string unknown_knobs;
  PcStatus pc;
};

// A state's name as the design spells it: "idle", "tracing", …; "unknown" out of range.
const char* state_name(gpuprof_state state);

// Whose copy of libcupti it is: "application", "shim"; "unknown" out of range.
const char* cupti_origin_name(gpuprof_cupti_origin origin);

// The words of the summary: "off", "waiting", "on", "refused".
const char* pc_state_name(gpuprof_pc_state state);
// "privilege", "mig", …; "none"; "unknown" out of range.
const char* pc_reason_name(gpuprof_pc_reason reason);

// Validates a page that was read whole; nothing in it is trusted.
PcClaims decode_claims(const gpuprof_status_page& page);
ShimStatus decode_status(const gpuprof_status_page& page);

}  // namespace gpuprof::target

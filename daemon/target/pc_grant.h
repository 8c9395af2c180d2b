// SPDX-License-Identifier: Apache-2.0
//
// What daemon and shim tell each other of the GPUs that a process may PC-sample (docs/adr/0020).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "proto/memfd_layout.h"

namespace gpuprof::target {

// As CUDA tells it. All zero: unknown, and then all unknown ones are one GPU.
using GpuUuid = std::array<uint8_t, 16>;

struct PcGrant {
  gpuprof_pc_grant mode = GPUPROF_PC_GRANT_ALL;
  uint64_t serial = 0;        // another one with each other grant
  std::vector<GpuUuid> gpus;  // LISTED: at most GPUPROF_PC_GPUS_MAX
};

// From the status page, as the target wrote it. Bits are indices of `gpus`, which are device ids.
struct PcClaims {
  bool heeds_grants = false;  // the shim is not older than grants
  uint64_t serial = 0;        // of the grant in force, 0: none
  uint32_t wanted = 0;        // a launch wanted to sample it
  uint32_t held = 0;          // is sampled, or may be
  std::array<GpuUuid, GPUPROF_PC_GPUS_MAX> gpus{};
};

}  // namespace gpuprof::target

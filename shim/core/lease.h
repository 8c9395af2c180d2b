// SPDX-License-Identifier: Apache-2.0
//
// Lease: what the shim should be doing now, from the control page, the grant at init, and a timer
// of its own (docs/adr/0002). No clock is compared across processes: the timer starts when a serial
// is first seen.
#pragma once

#include <cstdint>

#include "proto/memfd_layout.h"
#include "shim/core/control.h"

namespace gpuprof::shim {

struct Demand {
  gpuprof_tier tier = GPUPROF_TIER_OFF;
  // Why it is off: NONE (nobody ever asked), RELEASED, LEASE_EXPIRED.
  gpuprof_reason reason = GPUPROF_REASON_NONE;
  // Rates, period and seed to use; defaults for a grant.
  ControlRequest request;
  // Another controller than at the last update (pid or name changed): replay metadata.
  bool new_controller = false;
};

// Service thread only.
class Lease {
 public:
  constexpr Lease() = default;
  // GPU_PROFILED_ARM or autoarm at init: `tier` for `lease_ms`, until a controller takes over.
  void grant(gpuprof_tier tier, uint32_t lease_ms, uint64_t now_ns);
  // `read` and `request` as read_control() gave them. `now_ns` is CLOCK_MONOTONIC.
  Demand update(ControlRead read, const ControlRequest& request, uint64_t now_ns);
  // When the current demand runs out; UINT64_MAX if it is off already.
  uint64_t deadline_ns() const {
    return demand_.tier == GPUPROF_TIER_OFF ? UINT64_MAX : deadline_ns_;
  }

 private:
  Demand demand_;
  uint64_t deadline_ns_ = 0;
  uint64_t last_serial_ = 0;
  uint32_t last_controller_ = 0;
};

inline constexpr uint32_t kInitLeaseMs = 2000;  // design 3.4: what arms at init has a 2 s lease

}  // namespace gpuprof::shim

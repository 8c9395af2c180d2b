// SPDX-License-Identifier: Apache-2.0
#include "shim/core/lease.h"

namespace gpuprof::shim {
namespace {

void switch_off(Demand& demand, gpuprof_reason reason) {
  // Off for the first reason: an expired lease stays expired when the page is released later.
  if (demand.tier != GPUPROF_TIER_OFF) demand.reason = reason;
  demand.tier = GPUPROF_TIER_OFF;
}

}  // namespace

void Lease::grant(gpuprof_tier tier, uint32_t lease_ms, uint64_t now_ns) {
  demand_ = Demand{};
  demand_.tier = tier;
  deadline_ns_ = now_ns + uint64_t{lease_ms} * 1'000'000u;
}

Demand Lease::update(ControlRead read, const ControlRequest& request, uint64_t now_ns) {
  demand_.new_controller = false;
  if (read == ControlRead::kInvalid) switch_off(demand_, GPUPROF_REASON_RELEASED);
  if (read == ControlRead::kValid) {
    if (request.lease_serial != last_serial_) {
      last_serial_ = request.lease_serial;
      deadline_ns_ = now_ns + uint64_t{request.lease_ms} * 1'000'000u;
      demand_.new_controller = request.controller_pid != last_controller_;
      last_controller_ = request.controller_pid;
      if (request.tier == GPUPROF_TIER_OFF) {
        switch_off(demand_, GPUPROF_REASON_RELEASED);
      } else {
        demand_.tier = request.tier;
        demand_.reason = GPUPROF_REASON_NONE;
        demand_.request = request;
      }
    } else if (request.tier == GPUPROF_TIER_OFF) {
      switch_off(demand_, GPUPROF_REASON_RELEASED);
    } else if (demand_.tier != GPUPROF_TIER_OFF) {
      // The same lease with other wishes: they hold, the time does not start anew.
      demand_.tier = request.tier;
      demand_.request = request;
    }
  }
  if (demand_.tier != GPUPROF_TIER_OFF && now_ns >= deadline_ns_) {
    switch_off(demand_, GPUPROF_REASON_LEASE_EXPIRED);
  }
  return demand_;
}

}  // namespace gpuprof::shim

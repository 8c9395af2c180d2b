// SPDX-License-Identifier: Apache-2.0
// PcSampling and the GPUs that the controller grants (docs/adr/0020).
#include <cstdio>

#include "shim/core/metadata.h"
#include "shim/cupti/arming.h"
#include "shim/cupti/pc_sampling.h"

namespace gpuprof::cupti {

/// From here on no device outside the grant is enabled; its serial on the page says so.
void PcSampling::follow_grant(const shim::PcGrant& grant) noexcept {
  if (grant == grant_) return;
  grant_ = grant;
  changed();
  publish();
}

bool PcSampling::granted(uint32_t device) const noexcept {
  if (grant_.all || grant_.count == 0) return grant_.all;
  gpuprof_device_v1 facts;
  // A device without a place on the page could not be told as held.
  return device < GPUPROF_PC_GPUS_MAX && shim::known_device(device, &facts) &&
         grant_.covers(facts.uuid);
}

void PcSampling::want(uint32_t device) noexcept {
  const uint64_t bit = uint64_t{1} << device;
  if ((ungranted_ & bit) != 0) return;
  ungranted_ |= bit;
  snprintf(taken_text_, sizeof taken_text_,
           "GPU %u is not granted: one process at a time can PC-sample a GPU", device);
  publish();
}

void PcSampling::withdraw(uint32_t device) noexcept { ungranted_ &= ~(uint64_t{1} << device); }

void PcSampling::withdraw_all() noexcept {
  if (ungranted_ == 0) return;
  ungranted_ = 0;
  changed();
  publish();
}

void PcSampling::publish_claims(uint32_t enabling) noexcept {
  // What CUPTI sampled when it broke down, or at exit, may be sampled until the process has ended.
  if (arming().phase() == Phase::kInert) return;
  uint64_t held = enabling == kNoDevice ? 0 : uint64_t{1} << enabling;
  for (const PcContext& context : contexts_) {
    if (context.on() || context.stuck()) held |= uint64_t{1} << context.device();
  }
  shim::PcClaims claims;
  claims.grant_serial = grant_.serial;
  claims.held = static_cast<uint32_t>(held) & ((1u << GPUPROF_PC_GPUS_MAX) - 1);
  claims.wanted = static_cast<uint32_t>(ungranted_) & ((1u << GPUPROF_PC_GPUS_MAX) - 1);
  if (claims == claims_) return;
  claims_ = claims;
  shim::set_pc_claims(claims);
}

}  // namespace gpuprof::cupti

// SPDX-License-Identifier: Apache-2.0
#include "shim/core/control.h"

#include <atomic>
#include <cstring>

namespace gpuprof::shim {
namespace {

constexpr int kTries = 16;
constexpr uint32_t kPeriodMin = 5;
constexpr uint32_t kPeriodMax = 31;
constexpr size_t kUsedBytes = offsetof(gpuprof_control_page, reserved);
static_assert(kUsedBytes % sizeof(uint64_t) == 0);

uint32_t load_seq(const gpuprof_control_page& page) {
  return std::atomic_ref<uint32_t>(const_cast<uint32_t&>(page.seq)).load(std::memory_order_acquire);
}

// Word-wise relaxed loads: each value is used as it was read once, whatever the page says later.
void copy_used(const gpuprof_control_page& page, gpuprof_control_page* out) {
  auto* from = reinterpret_cast<uint64_t*>(const_cast<gpuprof_control_page*>(&page));
  for (size_t i = 0; i < kUsedBytes / sizeof(uint64_t); ++i) {
    const uint64_t word = std::atomic_ref<uint64_t>(from[i]).load(std::memory_order_relaxed);
    memcpy(reinterpret_cast<char*>(out) + i * sizeof word, &word, sizeof word);
  }
}

bool copy_stable(const gpuprof_control_page& page, gpuprof_control_page* out) {
  for (int tries = 0; tries < kTries; ++tries) {
    const uint32_t before = load_seq(page);
    if (before % 2 != 0) continue;
    copy_used(page, out);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (load_seq(page) == before) return true;
  }
  return false;
}

bool acceptable(const gpuprof_control_page& page) {
  if (page.abi_version != GPUPROF_ABI_VERSION) return false;
  if (page.tier > GPUPROF_TIER_SERIALIZED) return false;
  if (page.pc_period != 0 && (page.pc_period < kPeriodMin || page.pc_period > kPeriodMax)) {
    return false;
  }
  if (page.pc_duty > GPUPROF_PC_DUTY_MAX) return false;
  if (page.lease_serial == 0) return false;
  if (page.pc_grant >= GPUPROF_PC_GRANT_COUNT) return false;
  if (page.pc_grant_count > GPUPROF_PC_GPUS_MAX) return false;
  return page.lease_ms >= 1 && page.lease_ms <= GPUPROF_LEASE_MS_MAX;
}

void copy_name(char (&out)[64], const char (&name)[64]) {
  memset(out, 0, sizeof out);
  for (size_t i = 0; i + 1 < sizeof out && name[i] != '\0'; ++i) {
    out[i] = name[i] >= 0x20 && name[i] < 0x7f ? name[i] : '?';
  }
}

void copy_grant(PcGrant* out, const gpuprof_control_page& page) {
  out->all = page.pc_grant == GPUPROF_PC_GRANT_ALL;
  out->serial = page.pc_grant_serial;
  if (out->all) return;
  out->count = page.pc_grant_count;
  memcpy(out->gpus, page.pc_gpus, out->count * sizeof out->gpus[0]);
}

}  // namespace

bool PcGrant::covers(const uint8_t (&uuid)[16]) const {
  if (all) return true;
  for (uint32_t i = 0; i < count; ++i) {
    if (memcmp(gpus[i].bytes, uuid, sizeof uuid) == 0) return true;
  }
  return false;
}

bool operator==(const PcGrant& a, const PcGrant& b) {
  return a.all == b.all && a.count == b.count && a.serial == b.serial &&
         memcmp(a.gpus, b.gpus, a.count * sizeof a.gpus[0]) == 0;
}

ControlRead read_control(const gpuprof_control_page* page, ControlRequest* out) {
  *out = ControlRequest{};
  if (page == nullptr) return ControlRead::kAbsent;
  gpuprof_control_page copy{};
  if (!copy_stable(*page, &copy)) return ControlRead::kTorn;
  if (copy.magic == 0) return ControlRead::kAbsent;
  if (copy.magic != GPUPROF_CONTROL_MAGIC || !acceptable(copy)) return ControlRead::kInvalid;
  out->tier = static_cast<gpuprof_tier>(copy.tier);
  out->pc_period = copy.pc_period;
  out->pc_duty = copy.pc_duty;
  out->stack_rate = copy.stack_rate;
  out->process_rate = copy.process_rate;
  out->process_bytes = copy.process_bytes;
  out->lease_serial = copy.lease_serial;
  out->lease_ms = copy.lease_ms;
  out->controller_pid = copy.controller_pid;
  out->sampler_seed = copy.sampler_seed;
  copy_name(out->controller_name, copy.controller_name);
  copy_grant(&out->pc_grant, copy);
  return ControlRead::kValid;
}

}  // namespace gpuprof::shim

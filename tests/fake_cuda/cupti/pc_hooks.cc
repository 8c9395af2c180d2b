// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_cuda/cupti/pc_hooks.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "tests/fake_cuda/cupti/pc_sampler.h"
#include "tests/fake_cuda/cupti/state.h"

namespace fakecuda {
namespace {

/// Modules that were unloaded and may still have samples. With pc_mutex() held.
std::vector<uint32_t>& gone_modules() {
  static auto* gone = new std::vector<uint32_t>;
  return *gone;
}

/// The last launch of each context, while one of them is sampled.
struct LastLaunch {
  std::atomic<CUcontext> context{nullptr};
  std::atomic<int> tid{0};
  std::atomic<uint64_t> time_ns{0};
};
std::array<LastLaunch, 64> last_launches;

LastLaunch* last_launch_in(CUcontext context, bool make) {
  for (LastLaunch& last : last_launches) {
    CUcontext found = last.context.load();
    if (found == nullptr && !make) return nullptr;
    if (found == nullptr && last.context.compare_exchange_strong(found, context)) return &last;
    if (found == context) return &last;
  }
  return nullptr;
}

}  // namespace

void pc_launched(CUcontext context) {
  if (cupti().pc_enabled.load(std::memory_order_relaxed) == 0) return;
  if (LastLaunch* last = last_launch_in(context, true)) {
    last->tid.store(gettid());
    last->time_ns.store(driver_interface()->now());
  }
}

bool pc_launched_elsewhere(CUcontext context) {
  const LastLaunch* last = last_launch_in(context, false);
  if (last == nullptr || last->tid.load() == gettid()) return false;
  return driver_interface()->now() < last->time_ns.load() + 500'000'000;
}

uint64_t own_crc(const char* image, size_t size) {
  uint32_t hash = 2166136261u;  // FNV-1a
  for (size_t i = 0; i < size; ++i) hash = (hash ^ static_cast<uint8_t>(image[i])) * 16777619u;
  return hash;
}

void pc_execution(const Execution& work) {
  if (cupti().pc_enabled.load(std::memory_order_relaxed) == 0) return;
  const Interface* driver = driver_interface();
  std::lock_guard lock(pc_mutex());
  for (PcSampler* sampler : pc_samplers()) {
    if (sampler->context_id() != work.context_id) continue;
    sampler->ran(work, driver->thread().label, driver->setting(Key::kInstant) != 0);
  }
}

/// The next module may lie where the last one was: samples of the two cannot be told apart.
void pc_module_loaded(uint32_t module_id, uint64_t crc) {
  Interface* driver = driver_interface();
  uint64_t merged = 0;
  {
    std::lock_guard lock(pc_mutex());
    KernelCode heir{};
    heir.module_id = module_id;
    heir.cubin_crc = crc;
    for (PcSampler* sampler : pc_samplers()) {
      if (!sampler->enabled || gone_modules().empty()) continue;
      if (sampler->config.mode != CUPTI_PC_SAMPLING_COLLECTION_MODE_CONTINUOUS) continue;
      sampler->decode(driver->now(), true);
      for (const uint32_t gone : gone_modules()) merged += sampler->merge(gone, &heir);
    }
    gone_modules().clear();
  }
  if (merged != 0) {
    driver->violation("module-undrained",
                      "%lu samples of an unloaded module were not drained before module %u came",
                      merged, module_id);
  }
}

void pc_module_unloading(uint32_t module_id) {
  if (cupti().pc_enabled.load() == 0) return;
  std::lock_guard lock(pc_mutex());
  gone_modules().push_back(module_id);
}

void pc_context_destroyed(CUcontext context) {
  std::lock_guard lock(pc_mutex());
  PcSampler* sampler = find_pc_sampler(context);
  if (sampler == nullptr || !sampler->enabled) return;
  sampler->disable();
  cupti().pc_enabled.fetch_sub(1);
}

}  // namespace fakecuda

using namespace fakecuda;

FAKE_EXPORT CUptiResult cuptiGetCubinCrc(CUpti_GetCubinCrcParams* params) {  // needs no driver
  if (params == nullptr || params->size != CUpti_GetCubinCrcParamsSize ||
      params->cubin == nullptr || params->cubinSize == 0) {
    return fail(CUPTI_ERROR_INVALID_PARAMETER);
  }
  params->cubinCrc = own_crc(static_cast<const char*>(params->cubin), params->cubinSize);
  return CUPTI_SUCCESS;
}

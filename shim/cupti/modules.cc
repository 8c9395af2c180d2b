// SPDX-License-Identifier: Apache-2.0
#include "shim/cupti/modules.h"

#include "shim/core/clock.h"
#include "shim/core/memfd.h"
#include "shim/core/owner.h"
#include "shim/core/probes.h"
#include "shim/cupti/callback_scope.h"

namespace gpuprof::cupti {
namespace {

/// How far back MODULE_LOADED looks for the entry that the hash callback has just made: other
/// threads may load modules in between.
constexpr uint32_t kLookBack = 64;

uint32_t find_recent(shim::ModuleTable& modules, const void* image, size_t size_bytes) noexcept {
  const uint32_t claimed = modules.count();
  const uint32_t end = claimed < GPUPROF_MODULE_CAPACITY ? claimed : GPUPROF_MODULE_CAPACITY;
  for (uint32_t index = end; index-- > 0 && end - index <= kLookBack;) {
    const gpuprof_module_entry* entry = modules.entry(index);
    if (entry == nullptr) return shim::kNoModule;
    const uint32_t state = __atomic_load_n(&entry->state, __ATOMIC_ACQUIRE);
    const bool live = state == GPUPROF_MODULE_PRESENT || state == GPUPROF_MODULE_COPIED;
    if (live && entry->address == reinterpret_cast<uintptr_t>(image) &&
        entry->size_bytes == size_bytes) {
      return index;
    }
  }
  return shim::kNoModule;
}

void fire(shim::ModuleTable& modules, uint32_t index, gpuprof_module_event event) noexcept {
  if (index == shim::kNoModule || !shim::enabled(GPUPROF_PROBE_MODULE)) return;
  const gpuprof_module_entry* entry = modules.entry(index);
  if (entry == nullptr) return;
  gpuprof_module_v1 record = {};
  record.hash = entry->hash;
  record.address = entry->address;
  record.size_bytes = entry->size_bytes;
  record.time_ns = shim::monotonic_ns();
  record.table_index = index;
  record.event = event;
  shim::emit(GPUPROF_PROBE_MODULE, &record, 1);
}

bool usable(const void* image, size_t size_bytes) noexcept {
  return image != nullptr && size_bytes != 0 && shim::owned();
}

}  // namespace

void on_hash(const void* image, size_t size_bytes, uint64_t* hash) noexcept {
  if (hash == nullptr) return;
  *hash = image == nullptr || size_bytes == 0 ? 0 : shim::hash_image(image, size_bytes);
  if (!usable(image, size_bytes)) return;
  const CallbackScope scope;
  shim::channel().modules().append(*hash, image, size_bytes, shim::monotonic_ns());
}

void on_module_loaded(const void* image, size_t size_bytes, bool armed) noexcept {
  if (!usable(image, size_bytes)) return;
  const CallbackScope scope;
  shim::ModuleTable& modules = shim::channel().modules();
  uint32_t index = find_recent(modules, image, size_bytes);
  if (index == shim::kNoModule) {
    index = modules.append(shim::hash_image(image, size_bytes), image, size_bytes,
                           shim::monotonic_ns());
  }
  if (armed) fire(modules, index, GPUPROF_MODULE_LOADED);
}

void on_module_unloading(const void* image, size_t size_bytes, bool armed, bool keep) noexcept {
  if (!usable(image, size_bytes)) return;
  const CallbackScope scope;
  shim::ModuleTable& modules = shim::channel().modules();
  const uint32_t index = modules.on_unload(image, size_bytes, keep);
  if (armed) fire(modules, index, GPUPROF_MODULE_UNLOADING);
}

}  // namespace gpuprof::cupti

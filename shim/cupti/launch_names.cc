// SPDX-License-Identifier: Apache-2.0
#include "shim/cupti/launch_names.h"

#include "shim/core/name_table.h"
#include "shim/cupti/callback_scope.h"
#include "shim/cupti/pc_sampling.h"

namespace gpuprof::cupti {
namespace {

constinit LaunchNames the_launch_names;

/// launched_work() of calls that do not name one function is made of the call's id.
constexpr uint64_t kLeastHandle = 1u << 16;

uint64_t key_of(const shim::WideCorrelation& wide) noexcept {
  return uint64_t{wide.epoch} << 32 | wide.id;
}

uint64_t look_up(const char* name) noexcept {
  const CallbackScope scope;
  if (is_collective(name)) pc_sampling().saw(kSawCollective);
  return shim::intern(name);
}

}  // namespace

LaunchNames& launch_names() noexcept { return the_launch_names; }

uint64_t LaunchNames::id_of(uint64_t work, const char* name, Memory& memory) const noexcept {
  if (work < kLeastHandle) return look_up(name);
  const uint32_t generation = generation_.load(std::memory_order_relaxed);
  Memory::Entry& entry = memory.entries[(work >> 4 ^ work >> 12) % Memory::kEntries];
  if (entry.work != work || entry.generation != generation) {
    entry = {work, look_up(name), generation};
  }
  return entry.name_id;
}

void LaunchNames::note(const shim::WideCorrelation& launch, uint64_t work, const char* name,
                       Memory& memory) noexcept {
  if (name == nullptr) return;
  const uint64_t name_id = id_of(work, name, memory);
  Slot& slot = slots_[launch.id % kSlots];
  slot.launch.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  slot.name_id.store(name_id, std::memory_order_relaxed);
  slot.launch.store(key_of(launch), std::memory_order_release);
}

uint64_t LaunchNames::of(const shim::WideCorrelation& execution) const noexcept {
  if (!gone_.load(std::memory_order_relaxed) || execution.before_arm) return 0;
  const uint64_t key = key_of(execution);
  const Slot& slot = slots_[execution.id % kSlots];
  if (slot.launch.load(std::memory_order_acquire) != key) return 0;
  const uint64_t name_id = slot.name_id.load(std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  return slot.launch.load(std::memory_order_relaxed) == key ? name_id : 0;
}

}  // namespace gpuprof::cupti

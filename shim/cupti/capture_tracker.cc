// SPDX-License-Identifier: Apache-2.0
#include "shim/cupti/capture_tracker.h"

namespace gpuprof::cupti {

uintptr_t CaptureTracker::key(const void* stream, const void* thread) noexcept {
  // CU_STREAM_LEGACY is 1, CU_STREAM_PER_THREAD 2 (cuda.h), and the null stream means either.
  const auto handle = reinterpret_cast<uintptr_t>(stream);
  return handle <= 2 ? reinterpret_cast<uintptr_t>(thread) : handle;
}

bool CaptureTracker::live(uint64_t since_ns, uint64_t now_ns, uint64_t max_age_ns) noexcept {
  return since_ns != 0 && now_ns - since_ns < max_age_ns;
}

void CaptureTracker::begin(const void* stream, const void* thread, uint64_t now_ns) noexcept {
  const uintptr_t wanted = key(stream, thread);
  for (Slot& slot : slots_) {
    uintptr_t expected = slot.key.load(std::memory_order_relaxed);
    const bool stale =
        expected != 0 && !live(slot.since_ns.load(std::memory_order_relaxed), now_ns);
    if (expected != 0 && expected != wanted && !stale) continue;
    slot.since_ns.store(now_ns, std::memory_order_relaxed);
    if (slot.key.compare_exchange_strong(expected, wanted, std::memory_order_release)) return;
  }
  unknown_since_ns_.store(now_ns, std::memory_order_relaxed);
}

void CaptureTracker::end(const void* stream, const void* thread) noexcept {
  const uintptr_t wanted = key(stream, thread);
  for (Slot& slot : slots_) {
    uintptr_t expected = wanted;
    if (slot.key.compare_exchange_strong(expected, 0, std::memory_order_release)) return;
  }
  // The end of a capture whose begin we did not see.
  unknown_since_ns_.store(0, std::memory_order_relaxed);
}

void CaptureTracker::saw_captured_launch(uint64_t now_ns) noexcept {
  for (const Slot& slot : slots_) {
    if (slot.key.load(std::memory_order_relaxed) != 0) return;  // a capture that we know of
  }
  unknown_since_ns_.store(now_ns, std::memory_order_relaxed);
}

bool CaptureTracker::in_progress(uint64_t now_ns) const noexcept {
  if (live(unknown_since_ns_.load(std::memory_order_relaxed), now_ns, kMaxUnknownAgeNs)) {
    return true;
  }
  for (const Slot& slot : slots_) {
    if (slot.key.load(std::memory_order_acquire) != 0 &&
        live(slot.since_ns.load(std::memory_order_relaxed), now_ns)) {
      return true;
    }
  }
  return false;
}

void CaptureTracker::reset() noexcept {
  for (Slot& slot : slots_) slot.key.store(0, std::memory_order_relaxed);
  unknown_since_ns_.store(0, std::memory_order_relaxed);
}

}  // namespace gpuprof::cupti

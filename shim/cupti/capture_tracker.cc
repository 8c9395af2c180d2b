// SPDX-License-Identifier: Apache-2.0
#include "shim/cupti/capture_tracker.h"

namespace gpuprof::cupti {

uintptr_t CaptureTracker::key(const void* stream, const void* thread) noexcept {
  // CU_STREAM_LEGACY is 1, CU_STREAM_PER_THREAD 2 (cuda.h), and the null stream means either.
  const auto handle = reinterpret_cast<uintptr_t>(stream);
  return handle <= 2 ? reinterpret_cast<uintptr_t>(thread) : handle;
}

/// No stream's and no thread's: both are aligned.
uintptr_t CaptureTracker::entering_key(const void* thread) noexcept {
  return reinterpret_cast<uintptr_t>(thread) | 1;
}

bool CaptureTracker::live(uint64_t since_ns, uint64_t now_ns, uint64_t max_age_ns) noexcept {
  if (since_ns == 0) return false;
  // It may have begun after the clock was read.
  return now_ns < since_ns || now_ns - since_ns < max_age_ns;
}

void CaptureTracker::add(uintptr_t wanted, uint64_t now_ns) noexcept {
  for (Slot& slot : slots_) {
    uintptr_t expected = slot.key.load(std::memory_order_relaxed);
    const bool stale =
        expected != 0 && !live(slot.since_ns.load(std::memory_order_relaxed), now_ns);
    if (expected != 0 && expected != wanted && !stale) continue;
    slot.since_ns.store(now_ns, std::memory_order_relaxed);
    if (slot.key.compare_exchange_strong(expected, wanted)) return;
  }
  unknown_since_ns_.store(now_ns);
}

bool CaptureTracker::remove(uintptr_t wanted) noexcept {
  for (Slot& slot : slots_) {
    uintptr_t expected = wanted;
    if (slot.key.compare_exchange_strong(expected, 0, std::memory_order_release)) return true;
  }
  return false;
}

void CaptureTracker::entering(const void* thread, uint64_t now_ns) noexcept {
  add(entering_key(thread), now_ns);
}

void CaptureTracker::entered(const void* thread) noexcept { (void)remove(entering_key(thread)); }

void CaptureTracker::begin(const void* stream, const void* thread, uint64_t now_ns) noexcept {
  add(key(stream, thread), now_ns);
}

void CaptureTracker::end(const void* stream, const void* thread) noexcept {
  if (remove(key(stream, thread))) return;
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
  if (live(unknown_since_ns_.load(), now_ns, kMaxUnknownAgeNs)) {
    return true;
  }
  for (const Slot& slot : slots_) {
    if (slot.key.load() != 0 && live(slot.since_ns.load(std::memory_order_relaxed), now_ns)) {
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

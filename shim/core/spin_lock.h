// SPDX-License-Identifier: Apache-2.0
//
// SpinLock: for copies of at most a few KiB, never held across a call out of the shim, so that
// taking it in a callback is bounded by somebody else's memcpy. A forked child never takes it
// (owned()). What also runs at exit takes it by lock_within(): an exit() in a signal handler that
// interrupted the holder on its own thread would otherwise wait for itself.
#pragma once

#include <atomic>
#include <cstdint>

#include <sched.h>

#include "shim/core/clock.h"

namespace gpuprof::shim {

class SpinLock {
 public:
  constexpr SpinLock() = default;
  void lock() {
    // Yields when the holder lost its CPU: spinning on would only keep it off.
    for (unsigned spins = 0; locked_.exchange(true, std::memory_order_acquire); ++spins) {
      if (spins % 64 == 63) sched_yield();
    }
  }
  // False if it is not free within `wait_ns`.
  bool lock_within(uint64_t wait_ns) {
    if (try_lock()) return true;
    const uint64_t begin_ns = monotonic_ns();
    do {
      for (unsigned spins = 0; spins < 64; ++spins) {
        if (try_lock()) return true;
      }
      sched_yield();
    } while (monotonic_ns() - begin_ns < wait_ns);
    return false;
  }
  bool try_lock() { return !locked_.exchange(true, std::memory_order_acquire); }
  void unlock() { locked_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> locked_{false};
};

class SpinGuard {
 public:
  explicit SpinGuard(SpinLock& lock) : lock_(lock) { lock_.lock(); }
  ~SpinGuard() { lock_.unlock(); }
  SpinGuard(const SpinGuard&) = delete;
  SpinGuard& operator=(const SpinGuard&) = delete;

 private:
  SpinLock& lock_;
};

}  // namespace gpuprof::shim

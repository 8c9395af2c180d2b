// SPDX-License-Identifier: Apache-2.0
//
// SpinLock: for copies of at most a few KiB, never held across a call out of the shim, so that
// taking it in a callback is bounded by somebody else's memcpy. A forked child never takes it
// (owned()).
#pragma once

#include <atomic>

#include <sched.h>

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

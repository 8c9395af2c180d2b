// SPDX-License-Identifier: Apache-2.0
//
// The service thread's creation, futexes, and the guards that callbacks need.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "shim/core/status_code.h"

namespace gpuprof::shim {

// Starts a detached thread named "gpu-profiled" with every signal blocked from its first
// instruction (so that none of the application's is ever delivered to it) and cancellation off. It
// has the ordinary scheduling policy where the caller has a real-time one. The stack is 256 KiB:
// CUPTI's own flush runs on it, and untouched stack costs nothing; where the process's static TLS
// does not leave room in that, larger ones are tried. kNoMemory or kLimit: the shim declines.
Status start_service_thread(void (*run)(void*), void* argument);

// Waits while *word == expected: true when woken or changed, false after `timeout_ns`. UINT64_MAX
// waits for ever. Not a cancellation point. Process-private futex.
bool futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, uint64_t timeout_ns);
// Wakes up to `waiters`.
void futex_wake(std::atomic<uint32_t>& word, int waiters = INT32_MAX);

// No cancellation while in scope: a thread that the application cancels inside our callback must
// not unwind through CUPTI's frames.
class NoCancel {
 public:
  NoCancel();
  ~NoCancel();
  NoCancel(const NoCancel&) = delete;
  NoCancel& operator=(const NoCancel&) = delete;

 private:
  int old_state_;
};

// Keeps the application's errno over our callback: a launch that succeeds must not seem to set it.
class KeepErrno {
 public:
  KeepErrno() : saved_(errno) {}
  ~KeepErrno() { errno = saved_; }
  KeepErrno(const KeepErrno&) = delete;
  KeepErrno& operator=(const KeepErrno&) = delete;

 private:
  int saved_;
};

}  // namespace gpuprof::shim

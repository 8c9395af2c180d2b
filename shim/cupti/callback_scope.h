// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>

#include "shim/core/thread.h"

namespace gpuprof::cupti {

/// Around everything in a callback that makes a system call: a thread that the application cancels
/// must not unwind through CUPTI's frames, and the application finds errno as it left it.
class CallbackScope {
 public:
  CallbackScope() noexcept : errno_(errno) {}
  ~CallbackScope() { errno = errno_; }
  CallbackScope(const CallbackScope&) = delete;
  CallbackScope& operator=(const CallbackScope&) = delete;

 private:
  shim::NoCancel no_cancel_;
  int errno_;
};

}  // namespace gpuprof::cupti

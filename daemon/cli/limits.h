// SPDX-License-Identifier: Apache-2.0
//
// InheritedLimits: the resource limits that we were started with, and larger ones for ourselves.
#pragma once

#include <sys/resource.h>

#include <optional>

#include "daemon/base/result.h"

namespace gpuprof::cli {

// Each profiled process holds a few descriptors until the profile is written, after its exit, too;
// and a stack of 128 KiB ends in a fault inside libbpf. The command of `run` shall have the limits
// that we were given.
class InheritedLimits {
 public:
  static constexpr rlim_t kStackBytes = 8u << 20;
  static constexpr rlim_t kLeastStackBytes = 1u << 20;

  // Nothing was raised.
  InheritedLimits() = default;
  // Raises what can be. kUnavailable: the stack cannot, and is too small to run on. Before the
  // first thread.
  static Result<InheritedLimits> raise();
  // Gives back what was. Async-signal-safe: for the child of a fork.
  void restore() const;

 private:
  std::optional<rlimit> descriptors_, stack_;
};

// The calling thread's stack is as large as libdw may need it from now on: it cannot grow any more
// where the address space is used up, and a fault there is no failed allocation. For the main
// thread.
void reserve_stack();

}  // namespace gpuprof::cli

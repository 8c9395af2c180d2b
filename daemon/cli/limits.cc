// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/limits.h"

#include <pthread.h>

#include <algorithm>
#include <new>
#include <string>

namespace gpuprof::cli {
namespace {

// libdw reads a unit's lines with 38 KiB of locals, below our own callers.
constexpr size_t kReservedBytes = 256u << 10;

// glibc takes a new thread's stack from the limit at the program's start.
constexpr size_t kThreadStackBytes = 2u << 20;

// The lowest byte alone: the mapping grows down to it, and no page between is made.
[[gnu::noinline]] void grow_stack() {
  char reserved[kReservedBytes];
  *static_cast<volatile char*>(reserved) = 0;
}

}  // namespace

Result<InheritedLimits> InheritedLimits::raise() {
  InheritedLimits out;
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    const rlimit most = {limit.rlim_max, limit.rlim_max};
    if (::setrlimit(RLIMIT_NOFILE, &most) == 0) out.descriptors_ = limit;
  }
  if (::getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= kStackBytes) return out;
  // Beyond the hard limit with CAP_SYS_RESOURCE only.
  const rlimit wanted = {kStackBytes, std::max(limit.rlim_max, kStackBytes)};
  const rlimit most = {std::min(limit.rlim_max, kStackBytes), limit.rlim_max};
  if (::setrlimit(RLIMIT_STACK, &wanted) == 0 || ::setrlimit(RLIMIT_STACK, &most) == 0)
    out.stack_ = limit;
  if (::getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < kLeastStackBytes)
    return fail(Code::kUnavailable,
                "the stack limit of " + std::to_string(limit.rlim_cur >> 10) +
                    " KiB is too small for gpu-profiled: raise it (ulimit -s 8192, for a hard "
                    "limit as root)");
  pthread_attr_t attributes;
  if (::pthread_attr_init(&attributes) == 0) {
    ::pthread_attr_setstacksize(&attributes, kThreadStackBytes);
    ::pthread_setattr_default_np(&attributes);
    ::pthread_attr_destroy(&attributes);
  }
  return out;
}

void reserve_stack() {
  // What is not there is told as for any allocation.
  void* room = ::operator new(2 * kReservedBytes);
  asm volatile("" : : "r"(room) : "memory");
  ::operator delete(room);
  grow_stack();
}

void InheritedLimits::restore() const {
  if (descriptors_) ::setrlimit(RLIMIT_NOFILE, &*descriptors_);
  if (stack_) ::setrlimit(RLIMIT_STACK, &*stack_);
}

}  // namespace gpuprof::cli

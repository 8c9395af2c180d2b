// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/limits.h"

#include <pthread.h>

#include <algorithm>
#include <string>

namespace gpuprof::cli {
namespace {

// glibc takes a new thread's stack from the limit at the program's start.
constexpr size_t kThreadStackBytes = 2u << 20;

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

void InheritedLimits::restore() const {
  if (descriptors_) ::setrlimit(RLIMIT_NOFILE, &*descriptors_);
  if (stack_) ::setrlimit(RLIMIT_STACK, &*stack_);
}

}  // namespace gpuprof::cli

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <time.h>

#include <cstdint>

namespace gpuprof {

// CLOCK_MONOTONIC, ns.
inline uint64_t monotonic_ns() {
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// For differences that may be negative.
inline int64_t signed_monotonic_ns() { return static_cast<int64_t>(monotonic_ns()); }

}  // namespace gpuprof

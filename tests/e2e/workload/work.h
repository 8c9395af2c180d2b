// SPDX-License-Identifier: Apache-2.0
// What the workload's three libraries pass down: one operation on the fake GPU, and the functions
// that the call path takes in each library. The path is alpha_<x>_0..9, beta_<y>_0..9,
// gamma_<z>_0..8, gamma_launch: 30 functions below main or the thread's start routine.
#pragma once

#include <cuda.h>

#include <cstdint>

#define WORKLOAD_FUNCTION extern "C" __attribute__((noinline, noclone, visibility("default")))

namespace workload {

enum class Op : uint32_t { kKernel, kMemcpyHtoD, kMemcpyDtoH, kMemcpyDtoD, kMemset, kGraph };

struct Work {
  Op op = Op::kKernel;
  bool driver_api = false;  // cuLaunchKernel itself, not through cudart
  CUfunction function = nullptr;
  CUgraphExec graph = nullptr;
  CUstream stream = nullptr;
  uint64_t duration_ns = 0;
  uint64_t bytes = 0;
  uint64_t (*beta)(Work*) = nullptr;
  uint64_t (*gamma)(Work*) = nullptr;
  uint64_t failed = 0;
};

}  // namespace workload

extern "C" {
uint64_t alpha_left_0(workload::Work*);
uint64_t alpha_right_0(workload::Work*);
uint64_t beta_left_0(workload::Work*);
uint64_t beta_right_0(workload::Work*);
uint64_t gamma_left_0(workload::Work*);
uint64_t gamma_right_0(workload::Work*);
}

// One link of the chain. The local array makes frames of different sizes; using the result after
// the call keeps the compiler from turning the call into a jump, which would remove the frame. One
// a source line: pprof's source views go by lines.
#define WORKLOAD_LEVEL(name, words, next)                 \
  WORKLOAD_FUNCTION uint64_t name(workload::Work* work) { \
    volatile uint64_t local[words];                       \
    local[0] = work->bytes;                               \
    const uint64_t below = next;                          \
    return below + (local[0] & 1);                        \
  }

// SPDX-License-Identifier: Apache-2.0
// The inner library of the workload: it makes the CUDA calls.
#include <cuda_runtime_api.h>

#include "tests/e2e/workload/work.h"

namespace {

int run(workload::Work* work) {
  using workload::Op;
  void* const device = reinterpret_cast<void*>(0x1000);
  switch (work->op) {
    case Op::kMemcpyHtoD:
      return cudaMemcpyAsync(device, device, work->bytes, cudaMemcpyHostToDevice, work->stream);
    case Op::kMemcpyDtoH:
      return cudaMemcpyAsync(device, device, work->bytes, cudaMemcpyDeviceToHost, work->stream);
    case Op::kMemcpyDtoD:
      return cudaMemcpyAsync(device, device, work->bytes, cudaMemcpyDeviceToDevice, work->stream);
    case Op::kMemset:
      return cudaMemsetAsync(device, 0, work->bytes, work->stream);
    case Op::kGraph:
      return cudaGraphLaunch(work->graph, work->stream);
    case Op::kKernel:
      break;
  }
  void* parameters[] = {&work->duration_ns};
  if (work->driver_api) {
    return static_cast<int>(
        cuLaunchKernel(work->function, 8, 4, 2, 128, 1, 1, 0, work->stream, parameters, nullptr));
  }
  return cudaLaunchKernel(reinterpret_cast<const void*>(work->function), dim3(8, 4, 2), dim3(128),
                          parameters, 0, work->stream);
}

}  // namespace

WORKLOAD_FUNCTION uint64_t gamma_launch(workload::Work* work) {
  if (run(work) != 0) ++work->failed;
  return work->failed;
}

// The chain of gamma is one shorter; gamma_launch is the thirtieth function.
WORKLOAD_LEVEL(gamma_left_8, 11, gamma_launch(work))
WORKLOAD_LEVEL(gamma_left_7, 1, gamma_left_8(work))
WORKLOAD_LEVEL(gamma_left_6, 2, gamma_left_7(work))
WORKLOAD_LEVEL(gamma_left_5, 40, gamma_left_6(work))
WORKLOAD_LEVEL(gamma_left_4, 3, gamma_left_5(work))
WORKLOAD_LEVEL(gamma_left_3, 8, gamma_left_4(work))
WORKLOAD_LEVEL(gamma_left_2, 1, gamma_left_3(work))
WORKLOAD_LEVEL(gamma_left_1, 5, gamma_left_2(work))
WORKLOAD_LEVEL(gamma_left_0, 6, gamma_left_1(work))
WORKLOAD_LEVEL(gamma_right_8, 3, gamma_launch(work))
WORKLOAD_LEVEL(gamma_right_7, 20, gamma_right_8(work))
WORKLOAD_LEVEL(gamma_right_6, 1, gamma_right_7(work))
WORKLOAD_LEVEL(gamma_right_5, 9, gamma_right_6(work))
WORKLOAD_LEVEL(gamma_right_4, 2, gamma_right_5(work))
WORKLOAD_LEVEL(gamma_right_3, 7, gamma_right_4(work))
WORKLOAD_LEVEL(gamma_right_2, 4, gamma_right_3(work))
WORKLOAD_LEVEL(gamma_right_1, 1, gamma_right_2(work))
WORKLOAD_LEVEL(gamma_right_0, 5, gamma_right_1(work))

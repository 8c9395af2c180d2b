// SPDX-License-Identifier: Apache-2.0
// A small libcudart.so.13: the runtime's launch entries over the fake driver, so that a runtime
// call encloses a driver call as in the real stack. A kernel is named by its CUfunction.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cupti.h>

#include "tests/fake_cuda/cudart/runtime_call.h"

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Launch {
  const void* function;
  dim3 grid;
  dim3 block;
  void** arguments;
  size_t shared;
  CUstream stream;
};

CUresult launch_body(void* argument) {
  const auto* l = static_cast<const Launch*>(argument);
  return cuLaunchKernel(static_cast<CUfunction>(const_cast<void*>(l->function)), l->grid.x,
                        l->grid.y, l->grid.z, l->block.x, l->block.y, l->block.z,
                        static_cast<unsigned>(l->shared), l->stream, l->arguments, nullptr);
}

cudaError_t launch(uint32_t cbid, const char* name, const void* function, dim3 grid, dim3 block,
                   void** arguments, size_t shared, cudaStream_t stream) {
  cudaLaunchKernel_v7000_params params{function, grid, block, arguments, shared, stream};
  Launch body{function, grid, block, arguments, shared, stream};
  const CUresult result = fake_cuda_runtime_call(
      cbid, name, &params, static_cast<CUfunction>(const_cast<void*>(function)), 1, launch_body,
      &body);
  return static_cast<cudaError_t>(result);
}

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
  cudaMemcpyKind kind;
  CUstream stream;
  int value;
};

CUresult copy_body(void* argument) {
  const auto* c = static_cast<const Copy*>(argument);
  const auto to = reinterpret_cast<CUdeviceptr>(c->to);
  const auto from = reinterpret_cast<CUdeviceptr>(c->from);
  switch (c->kind) {
    case cudaMemcpyHostToDevice:
      return cuMemcpyHtoDAsync(to, c->from, c->bytes, c->stream);
    case cudaMemcpyDeviceToHost:
      return cuMemcpyDtoHAsync(c->to, from, c->bytes, c->stream);
    case cudaMemcpyDeviceToDevice:
      return cuMemcpyDtoDAsync(to, from, c->bytes, c->stream);
    default:
      return cuMemcpyAsync(to, from, c->bytes, c->stream);
  }
}

CUresult fill_body(void* argument) {
  const auto* c = static_cast<const Copy*>(argument);
  return cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(c->to), static_cast<unsigned char>(c->value),
                         c->bytes, c->stream);
}

struct GraphLaunch {
  CUgraphExec exec;
  CUstream stream;
};

CUresult graph_body(void* argument) {
  const auto* g = static_cast<const GraphLaunch*>(argument);
  return cuGraphLaunch(g->exec, g->stream);
}

}  // namespace

FAKE_EXPORT cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block,
                                         void** arguments, size_t shared, cudaStream_t stream) {
  return launch(CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000, "cudaLaunchKernel", function, grid,
                block, arguments, shared, stream);
}

/// What binaries built with CUDA 13 call.
FAKE_EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t function, dim3 grid, dim3 block,
                                           void** arguments, size_t shared, cudaStream_t stream) {
  return launch(505, "__cudaLaunchKernel", function, grid, block, arguments, shared, stream);
}

FAKE_EXPORT cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                                        cudaMemcpyKind kind, cudaStream_t stream) {
  cudaMemcpyAsync_v3020_params params{to, from, bytes, kind, stream};
  Copy body{to, from, bytes, kind, stream, 0};
  return static_cast<cudaError_t>(
      fake_cuda_runtime_call(CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_v3020, "cudaMemcpyAsync",
                             &params, nullptr, 0, copy_body, &body));
}

FAKE_EXPORT cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  cudaMemsetAsync_v3020_params params{to, value, bytes, stream};
  Copy body{to, nullptr, bytes, cudaMemcpyDefault, stream, value};
  return static_cast<cudaError_t>(
      fake_cuda_runtime_call(CUPTI_RUNTIME_TRACE_CBID_cudaMemsetAsync_v3020, "cudaMemsetAsync",
                             &params, nullptr, 0, fill_body, &body));
}

FAKE_EXPORT cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  cudaGraphLaunch_v10000_params params{exec, stream};
  GraphLaunch body{exec, stream};
  return static_cast<cudaError_t>(
      fake_cuda_runtime_call(CUPTI_RUNTIME_TRACE_CBID_cudaGraphLaunch_v10000, "cudaGraphLaunch",
                             &params, nullptr, 1, graph_body, &body));
}

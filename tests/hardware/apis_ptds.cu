// SPDX-License-Identifier: Apache-2.0
//
// Compiled with --default-stream per-thread: the launch and the copy go through the _ptsz/_ptds
// twins.
#include <cuda_runtime.h>

__global__ void k_ptds() {}

__attribute__((noinline)) void by_ptds(int n, void* device, const void* host) {
  for (int i = 0; i < n; ++i) {
    k_ptds<<<1, 32>>>();
    cudaMemcpyAsync(device, host, 256, cudaMemcpyHostToDevice);
  }
  cudaDeviceSynchronize();
}

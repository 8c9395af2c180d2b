// SPDX-License-Identifier: Apache-2.0
//
// The half of a -rdc=true program that another file calls.
#include "reduce.h"

__device__ __noinline__ float relax(float x, int n) {
  for (int i = 0; i < n; ++i) {
    x = 0.5f * (x + 2.0f / x);
  }
  return x;
}

__device__ float shared_total(float x) {
  return reduce::block(x, reduce::Sum<float>());
}

static __device__ __noinline__ float hidden(float x) {
  return x * x - 1.0f;
}

__global__ void library_kernel(float* data) {
  data[threadIdx.x] = hidden(data[threadIdx.x]) + relax(data[threadIdx.x], 3);
}

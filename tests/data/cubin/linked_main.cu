// SPDX-License-Identifier: Apache-2.0
//
// The half of a -rdc=true program with the kernels; linked_library.cu has a static function of the
// same name as one here.
#include "reduce.h"

extern __device__ float relax(float x, int n);
extern __device__ float shared_total(float x);

static __device__ __noinline__ float hidden(float x) {
  return x * x + 1.0f;
}

__global__ void linked_first(float* data, int n) {
  float x = relax(data[threadIdx.x], n);
  data[threadIdx.x] = hidden(x);
}

__global__ void linked_second(float* data, int n) {
  float x = relax(data[threadIdx.x], n + 1);
  x = reduce::warp(x, reduce::Sum<float>());
  data[threadIdx.x] = shared_total(x) + hidden(x);
}

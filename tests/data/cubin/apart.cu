// SPDX-License-Identifier: Apache-2.0
//
// Device functions that are not inlined: one with inlined code of its own, one that calls another, a
// recursive one, and divisions, whose slow path is ptxas' own function without lines.
#include "reduce.h"

static __device__ __forceinline__ float blend(float a, float b) {
  return a * 0.25f + b * 0.75f;
}

__device__ __noinline__ float leaf(float x) {
  float y = blend(x, x * x);
  return y / (x - 2.0f);
}

__device__ __noinline__ float branch(float x, int n) {
  float sum = 0;
  for (int i = 0; i < n; ++i) {
    sum += leaf(x + i);
  }
  return blend(sum, x);
}

__device__ __noinline__ int collatz(int n, int steps) {
  if (n <= 1) return steps;
  return n % 2 == 0 ? collatz(n / 2, steps + 1) : collatz(3 * n + 1, steps + 1);
}

__global__ void grow(float* data, int n) {
  int i = threadIdx.x;
  data[i] = branch(data[i], n) + branch(data[i] * 2.0f, n);
}

__global__ void walk(float* data, int* steps, double by) {
  int i = threadIdx.x;
  steps[i] = collatz(i + 1, 0);
  data[i] = leaf(data[i]) + static_cast<float>(steps[i] / by);
  data[i] = reduce::block(data[i], reduce::Max<float>());
}

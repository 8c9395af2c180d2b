// SPDX-License-Identifier: Apache-2.0
//
// Code that is inlined from another file.
#pragma once

namespace reduce {

template <class T>
struct Sum {
  __device__ T operator()(T a, T b) const { return a + b; }
};

template <class T>
struct Max {
  __device__ T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};

template <class T, class Op>
__device__ __forceinline__ T warp(T value, Op op) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    value = op(value, __shfl_xor_sync(0xffffffffu, value, step));
  }
  return value;
}

template <class T, class Op>
__device__ T block(T value, Op op) {
  __shared__ T partial[32];
  int lane = threadIdx.x % 32;
  int number = threadIdx.x / 32;
  value = warp(value, op);
  if (lane == 0) partial[number] = value;
  __syncthreads();
  if (number == 0) value = warp(partial[lane], op);
  return value;
}

}  // namespace reduce

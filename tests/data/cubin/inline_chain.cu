// SPDX-License-Identifier: Apache-2.0
//
// A chain of three inlined calls under a kernel, and a device function that is not inlined.

__device__ __forceinline__ float inner(float x, int n) {
  for (int i = 0; i < n; ++i) {
    x = x * 1.0001f + __sinf(x);
  }
  return x;
}

__device__ __forceinline__ float middle(float x, int n) {
  float y = inner(x, n);
  return y * y + inner(y, n / 2);
}

__device__ __forceinline__ float outer(float x, int n) {
  return middle(x, n) - middle(x + 1.0f, n);
}

__device__ __noinline__ float apart(float x, int n) {
  float y = inner(x, n);
  return y / (x + 3.0f);
}

extern "C" __global__ void chain(float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float x = outer(static_cast<float>(i), n);
  x += apart(x, n);
  out[i] = x;
}

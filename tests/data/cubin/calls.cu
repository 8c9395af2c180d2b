// SPDX-License-Identifier: Apache-2.0
//
// Who calls the functions inside a kernel's section: ptxas' own ones (square roots, divisions, which
// have no lines) from one line, from two, through a function that is called from two, in a loop of
// recursion, beside calls through pointers and in cases of a switch.

static __device__ __forceinline__ float root(float x) {
  return sqrtf(x) + 1.0f;
}

__global__ void one_line(float* data) {
  float x = data[threadIdx.x];
  x = x * 3.0f + 1.0f;
  data[threadIdx.x] = sqrtf(x);
}

__global__ void one_inlined(float* data) {
  float x = data[threadIdx.x];
  data[threadIdx.x] = root(x * 2.0f);
}

__global__ void two_lines(float* data, float by) {
  float x = data[threadIdx.x];
  x = x / by;
  if (x > 2.0f) {
    x = x * by + 1.0f;
    x = by / x;
  }
  data[threadIdx.x] = x;
}

__global__ void two_inlined(float* data, float limit) {
  float x = data[threadIdx.x];
  x = root(x);
  if (x > limit) {
    x = root(x * limit);
  }
  data[threadIdx.x] = x;
}

__device__ __noinline__ float inner(float x, float by) {
  return sqrtf(x + by) * by;
}

__device__ __noinline__ float outer(float x, float by) {
  if (x < 0.0f) {
    return -inner(-x, by);
  }
  return x * by;
}

__global__ void nested_once(float* data, float by) {
  data[threadIdx.x] = outer(data[threadIdx.x], by);
}

__global__ void nested_twice(float* data, float by) {
  float x = outer(data[threadIdx.x], by);
  x += 3.0f;
  data[threadIdx.x] = outer(x, by * 2.0f);
}

__device__ __noinline__ float recursive(float x, int depth) {
  if (depth == 0) return sqrtf(x);
  float half = recursive(x * 0.5f, depth - 1);
  return half + recursive(x * 0.25f, depth - 2);
}

__global__ void recursion(float* data, int depth) {
  data[threadIdx.x] = recursive(data[threadIdx.x], depth);
}

__device__ __noinline__ float odd(float x, int depth);

__device__ __noinline__ float even(float x, int depth) {
  if (depth == 0) return x / 3.7f;
  return odd(x + 1.0f, depth - 1) * x;
}

__device__ __noinline__ float odd(float x, int depth) {
  if (depth == 0) return sqrtf(x);
  return even(x + 2.0f, depth - 1) * x;
}

__global__ void mutual(float* data, int depth) {
  float x = data[threadIdx.x];
  if (depth & 1) {
    x = odd(x, depth);
  } else {
    x = even(x, depth);
  }
  data[threadIdx.x] = x;
}

__device__ __noinline__ float first(float x) {
  return sqrtf(x) * 2.0f;
}

__device__ __noinline__ float second(float x) {
  return 3.0f / x;
}

__global__ void pointers(float* data, int n) {
  float (*which)(float) = n & 1 ? first : second;
  float x = data[threadIdx.x];
  for (int i = 0; i < n; ++i) {
    x = which(x);
  }
  x += first(x);
  data[threadIdx.x] = x;
}

__global__ void cases(float* data, int n) {
  float x = data[threadIdx.x];
  switch (n) {
    case 0:
      x = sqrtf(x);
      break;
    case 1:
      x = second(x);
      break;
    case 2:
      x = x * x;
      break;
    case 3:
      x = x + data[7];
      break;
    case 4:
      x = __sinf(x);
      break;
    case 5:
      x = x - data[9];
      break;
    default:
      break;
  }
  data[threadIdx.x] = x;
}

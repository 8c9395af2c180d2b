// SPDX-License-Identifier: Apache-2.0
//
// Two kernels with the same instructions at the same offsets on different lines, and a third whose
// code differs. An address in a cubin says nothing without its section.

__global__ void scale_up(float* data, float by) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float x = data[i];
  x = x * by;
  data[i] = x;
}

__global__ void scale_twin(float* data, float by) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float x = data[i];

  x = x * by;

  data[i] = x;
}

__global__ void polynomial(float* data, float by, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float x = data[i];
  float sum = 0;
  for (int k = 0; k < n; ++k) {
    if (x > 100.0f) break;
    sum = sum * x + by;
    x = sqrtf(x) + sum;
  }
  data[i] = sum;
}

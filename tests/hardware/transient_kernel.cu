// SPDX-License-Identifier: Apache-2.0
// The kernel of transient.cu, made into two cubins: KERNEL is alpha or beta.
extern "C" __global__ void KERNEL(float* out, long long cycles) {
  const long long begin = clock64();
  float x = 1.0f + threadIdx.x;
  while (clock64() - begin < cycles) {
    for (int i = 0; i < 64; ++i) x = x * 1.0001f + 0.5f;
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = x;
}

// SPDX-License-Identifier: Apache-2.0
//
// A kernel as a vendor's library has it: compiled without line info.

extern "C" __global__ void opaque(float* data, int n) {
  float x = data[threadIdx.x];
  for (int i = 0; i < n; ++i) {
    x = x * x + 1.0f;
  }
  data[threadIdx.x] = x;
}

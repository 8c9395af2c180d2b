// SPDX-License-Identifier: Apache-2.0
// What the targets of the shim's tests do with the fake driver.
#pragma once

#include <cuda.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/hooks.h"

namespace gpuprof::testing {

inline CUfunction load_function(const char* name) {
  CUmodule module = nullptr;
  EXPECT_EQ(cuModuleLoadData(&module, "ptx"), CUDA_SUCCESS);
  CUfunction function = nullptr;
  EXPECT_EQ(cuModuleGetFunction(&function, module, name), CUDA_SUCCESS);
  return function;
}

inline void launch(CUfunction function, uint64_t duration_ns = 1000, CUstream stream = nullptr) {
  void* params[] = {&duration_ns};
  EXPECT_EQ(cuLaunchKernel(function, 1, 2, 3, 32, 1, 1, 64, stream, params, nullptr), CUDA_SUCCESS);
}

/// What the fake CUPTI has counted.
inline fakecuda::CuptiTotals& totals() { return fake_cuda_interface()->totals; }

}  // namespace gpuprof::testing

// SPDX-License-Identifier: Apache-2.0
// What the fake libcudart asks of the fake libcuda.
#pragma once

#include <cuda.h>

#include <cstdint>

/// Frames `body` as one runtime API call: callbacks of the RUNTIME domain, one correlation id for
/// it and for the driver calls inside. `function` (may be null) gives the kernel name.
extern "C" CUresult fake_cuda_runtime_call(uint32_t cbid, const char* name, const void* params,
                                           CUfunction function, int launch, CUresult (*body)(void*),
                                           void* argument);

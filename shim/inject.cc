// SPDX-License-Identifier: Apache-2.0
// The entry point that libcuda calls in the library that CUDA_INJECTION64_PATH names.
#include "shim/cupti/adapter.h"

extern "C" __attribute__((visibility("default"))) int InitializeInjection(void);

int InitializeInjection(void) { return gpuprof::cupti::initialize(); }

// SPDX-License-Identifier: Apache-2.0
// The runtime's frame around driver calls, and the label of the ground truth.
#include "tests/fake_cuda/cudart/runtime_call.h"

#include "tests/fake_cuda/driver/state.h"
#include "tests/fake_cuda/fake_cuda.h"

using namespace fakecuda;

FAKE_EXPORT CUresult fake_cuda_runtime_call(uint32_t cbid, const char* name, const void* params,
                                            CUfunction function, int launch,
                                            CUresult (*body)(void*), void* argument) {
  if (!interface().forked()) current_context();
  const char* symbol = function ? reinterpret_cast<Function*>(function)->told.c_str() : nullptr;
  Api api(CUPTI_CB_DOMAIN_RUNTIME_API, cbid, name, params, symbol, launch != 0);
  return static_cast<CUresult>(api.finish(api.allowed() ? body(argument) : api.result()));
}

FAKE_EXPORT void fake_cuda_label(const char* path) { thread_state().label = path; }

// SPDX-License-Identifier: Apache-2.0
// Versions, clocks, ids, texts.
#include <cstdio>
#include <cstdlib>

#include "tests/fake_cuda/cupti/state.h"

using namespace fakecuda;

FAKE_EXPORT CUptiResult cuptiGetVersion(uint32_t* version) {  // works with no driver
  Entry entry("cuptiGetVersion");
  *version = api_version();
  return CUPTI_SUCCESS;
}

FAKE_EXPORT CUptiResult cuptiGetTimestamp(uint64_t* timestamp) {
  Interface* driver = driver_interface();
  if (driver == nullptr) return fail(CUPTI_ERROR_UNKNOWN);
  Entry entry("cuptiGetTimestamp");
  *timestamp = driver->now();
  return CUPTI_SUCCESS;
}

FAKE_EXPORT CUptiResult cuptiGetResultString(CUptiResult result, const char** text) {
  switch (result) {
    case CUPTI_SUCCESS:
      *text = "CUPTI_SUCCESS";
      break;
    case CUPTI_ERROR_NOT_INITIALIZED:
      *text = "CUPTI_ERROR_NOT_INITIALIZED";
      break;
    case CUPTI_ERROR_NOT_COMPATIBLE:
      *text = "CUPTI_ERROR_NOT_COMPATIBLE";
      break;
    case CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED:
      *text = "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED";
      break;
    default:
      *text = "CUPTI_ERROR_UNKNOWN";
  }
  return CUPTI_SUCCESS;
}

FAKE_EXPORT CUptiResult cuptiGetErrorMessage(CUptiResult result, const char** text) {
  return cuptiGetResultString(result, text);
}

FAKE_EXPORT CUptiResult cuptiGetLastError(void) {
  return cupti().last_error.exchange(CUPTI_SUCCESS);
}

FAKE_EXPORT CUptiResult cuptiGetContextId(CUcontext context, uint32_t* id) {
  if (driver_interface() == nullptr) return fail(CUPTI_ERROR_UNKNOWN);
  Entry entry("cuptiGetContextId");
  if (context == nullptr) return fail(CUPTI_ERROR_INVALID_PARAMETER);
  *id = driver_interface()->context_id(context);
  return CUPTI_SUCCESS;
}

FAKE_EXPORT CUptiResult cuptiGetDeviceId(CUcontext context, uint32_t* id) {
  if (driver_interface() == nullptr) return fail(CUPTI_ERROR_UNKNOWN);
  Entry entry("cuptiGetDeviceId");
  *id = driver_interface()->device_id(context);
  return CUPTI_SUCCESS;
}

FAKE_EXPORT CUptiResult cuptiGetStreamIdEx(CUcontext context, CUstream stream, uint8_t per_thread,
                                           uint32_t* id) {
  if (driver_interface() == nullptr) return fail(CUPTI_ERROR_UNKNOWN);
  Entry entry("cuptiGetStreamIdEx");
  *id = driver_interface()->stream_id(context, stream, per_thread != 0);
  return CUPTI_SUCCESS;
}

/// Of the driver calls that put work on the fake GPU; no one asks for the others.
static const char* name_of_driver_call(uint32_t cbid) {
  switch (cbid) {
#define NAMED(call)                    \
  case CUPTI_DRIVER_TRACE_CBID_##call: \
    return #call;
    NAMED(cuLaunchKernel)
    NAMED(cuLaunchKernel_ptsz)
    NAMED(cuLaunchKernelEx)
    NAMED(cuLaunchKernelEx_ptsz)
    NAMED(cuGraphLaunch)
    NAMED(cuGraphLaunch_ptsz)
    NAMED(cuMemcpyAsync)
    NAMED(cuMemsetD8Async)
#undef NAMED
    default:
      return "fake";
  }
}

FAKE_EXPORT CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain domain, uint32_t cbid,
                                             const char** name) {
  if (cbid == 0 || domain <= 0 || domain >= CUPTI_CB_DOMAIN_SIZE)
    return fail(CUPTI_ERROR_INVALID_PARAMETER);
  *name = domain == CUPTI_CB_DOMAIN_DRIVER_API ? name_of_driver_call(cbid) : "fake";
  return CUPTI_SUCCESS;
}

FAKE_EXPORT CUptiResult cuptiSetThreadIdType(CUpti_ActivityThreadIdType) {
  Entry entry("cuptiSetThreadIdType");
  return CUPTI_SUCCESS;
}

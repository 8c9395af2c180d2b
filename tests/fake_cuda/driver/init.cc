// SPDX-License-Identifier: Apache-2.0
// cuInit and the injection, devices, contexts, streams.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/fake_cuda/driver/state.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace fakecuda {
namespace {

constexpr const char* kDeviceName = "NVIDIA Fake H200";
constexpr size_t kDeviceBytes = 150'754'820'096;
constexpr uint32_t kDefaultStreamId = 7;  // the numbers that CUPTI shows for the default stream
constexpr uint32_t kPerThreadStreamId = 13;

/// What the driver does with CUDA_INJECTION64_PATH: silent when the file or the symbol is missing.
void inject() {
  const char* path = getenv("CUDA_INJECTION64_PATH");
  if (path == nullptr || *path == 0) return;
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    if (getenv("FAKE_CUDA_VERBOSE") != nullptr) fprintf(stderr, "fake-cuda: %s\n", dlerror());
    return;
  }
  auto* initialize = reinterpret_cast<int (*)()>(dlsym(library, "InitializeInjection"));
  if (initialize == nullptr) return;
  thread_state().inside = Inside::kInjection;
  initialize();
  thread_state().inside = Inside::kNothing;
}

Context* new_context(uint32_t device) {
  auto* context = new Context;
  {
    std::lock_guard lock(driver().mutex);
    driver().contexts.push_back(context);
    context->id = static_cast<uint32_t>(driver().contexts.size());
  }
  context->device = device;
  context->default_stream.id = kDefaultStreamId;
  context->per_thread_stream.id = kPerThreadStreamId;
  const CuptiHooks* hooks = interface().hooks.load();
  if (hooks != nullptr) {
    thread_state().inside = Inside::kContextCreated;
    hooks->resource(CUPTI_CBID_RESOURCE_CONTEXT_CREATED, reinterpret_cast<CUcontext>(context),
                    nullptr);
    thread_state().inside = Inside::kNothing;
  }
  return context;
}

Context* primary_context(uint32_t device) {
  {
    std::lock_guard lock(driver().mutex);
    if (driver().primary.size() <= device) driver().primary.resize(device + 1);
    if (driver().primary[device] != nullptr) return driver().primary[device];
  }
  auto* context = new_context(device);
  std::lock_guard lock(driver().mutex);
  return driver().primary[device] = context;
}

/// Refuses what a real driver refuses: before cuInit, in a forked child, inside a callback.
CUresult plain_call(const char* name) {
  const Inside inside = thread_state().inside;
  if (inside != Inside::kNothing && inside != Inside::kInjection) {
    violation("cuda-in-callback", "%s called from a CUPTI callback", name);
  }
  return driver().initialised.load() && !interface().forked() ? CUDA_SUCCESS
                                                              : CUDA_ERROR_NOT_INITIALIZED;
}

bool valid(CUdevice device) {
  return device >= 0 && static_cast<uint64_t>(device) < device_count();
}

}  // namespace

/// A thread without a context works on the primary one, as under the runtime.
Context* current_context() {
  ThreadState& thread = thread_state();
  if (thread.context == nullptr && driver().initialised.load()) {
    thread.context = reinterpret_cast<CUcontext>(primary_context(0));
  }
  return reinterpret_cast<Context*>(thread.context);
}

}  // namespace fakecuda

using namespace fakecuda;

FAKE_EXPORT CUresult cuInit(unsigned int) {
  Driver& d = driver();
  if (thread_state().inside != Inside::kNothing) {
    violation("cuda-in-callback", "cuInit called from InitializeInjection or a callback");
    return CUDA_ERROR_NOT_INITIALIZED;
  }
  if (interface().forked()) return CUDA_ERROR_NOT_INITIALIZED;
  static std::mutex init_mutex;
  std::lock_guard lock(init_mutex);
  if (d.initialised.load()) return CUDA_SUCCESS;
  if (const uint64_t code = setting(Key::kInitFail); code != 0) return static_cast<CUresult>(code);
  d.owner_pid.store(getpid());
  d.correlation.store(static_cast<uint32_t>(setting(Key::kCorrelation)));
  inject();
  if (const uint64_t code = setting(Key::kInitFailLate); code != 0)
    return static_cast<CUresult>(code);
  d.initialised.store(true);
  if (const CuptiHooks* hooks = interface().hooks.load()) {
    thread_state().inside = Inside::kResource;
    hooks->resource(CUPTI_CBID_RESOURCE_CU_INIT_FINISHED, nullptr, nullptr);
    thread_state().inside = Inside::kNothing;
  }
  return CUDA_SUCCESS;
}

/// Works without cuInit, in InitializeInjection too.
FAKE_EXPORT CUresult cuDriverGetVersion(int* version) {
  *version = static_cast<int>(setting(Key::kDriver));
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGetCount(int* count) {
  if (const CUresult refused = plain_call("cuDeviceGetCount")) return refused;
  *count = static_cast<int>(device_count());
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (const CUresult refused = plain_call("cuDeviceGet")) return refused;
  if (!valid(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  if (const CUresult refused = plain_call("cuDeviceGetName")) return refused;
  if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  snprintf(name, static_cast<size_t>(length), "%s", kDeviceName);
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  if (const CUresult refused = plain_call("cuDeviceGetUuid_v2")) return refused;
  if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  const uint64_t gpu = gpu_of(static_cast<uint32_t>(device));
  for (uint64_t i = 0; i < 16; ++i) uuid->bytes[i] = static_cast<char>(0x10 * (gpu + 1) + i);
  uuid->bytes[0] = static_cast<char>(uuid->bytes[0] + static_cast<char>(gpu / 16));
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  if (const CUresult refused = plain_call("cuDeviceTotalMem_v2")) return refused;
  if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = kDeviceBytes;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
  if (const CUresult refused = plain_call("cuDeviceGetPCIBusId")) return refused;
  if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  snprintf(id, static_cast<size_t>(length), "0000:%02x:00.0",
           0x1b + static_cast<unsigned>(gpu_of(static_cast<uint32_t>(device))));
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute,
                                          CUdevice device) {
  if (const CUresult refused = plain_call("cuDeviceGetAttribute")) return refused;
  if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  switch (attribute) {  // an H200's
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = static_cast<int>(setting(Key::kComputeCapability) / 10);
      break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = static_cast<int>(setting(Key::kComputeCapability) % 10);
      break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = static_cast<int>(setting(Key::kSms));
      break;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
      *value = static_cast<int>(setting(Key::kClockKhz));
      break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      *value = 32;
      break;
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
      *value = 0;
      break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      *value = 0x1b + static_cast<int>(gpu_of(static_cast<uint32_t>(device)));
      break;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
      *value = 0;
      break;
    default:
      *value = 0;
  }
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = error == CUDA_SUCCESS ? "no error" : "fake error";
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuGetErrorName(CUresult error, const char** text) {
  *text = error == CUDA_SUCCESS ? "CUDA_SUCCESS" : "CUDA_ERROR_FAKE";
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuGetProcAddress_v2(const char* symbol, void** pfn, int, cuuint64_t,
                                         CUdriverProcAddressQueryResult* status) {
  *pfn = dlsym(RTLD_DEFAULT, (std::string(symbol) + "_v2").c_str());
  if (*pfn == nullptr) *pfn = dlsym(RTLD_DEFAULT, symbol);
  if (status != nullptr) {
    *status = *pfn ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return *pfn ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

FAKE_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (const CUresult refused = plain_call("cuDevicePrimaryCtxRetain")) return refused;
  if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  *context = reinterpret_cast<CUcontext>(primary_context(static_cast<uint32_t>(device)));
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) {
  return plain_call("cuDevicePrimaryCtxRelease_v2");
}

FAKE_EXPORT CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams*, unsigned int,
                                    CUdevice device) {
  if (const CUresult refused = plain_call("cuCtxCreate_v4")) return refused;
  if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  *context = reinterpret_cast<CUcontext>(new_context(static_cast<uint32_t>(device)));
  thread_state().context = *context;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuCtxDestroy_v2(CUcontext context) {
  if (const CUresult refused = plain_call("cuCtxDestroy_v2")) return refused;
  wait_gpu(driver().last_gpu_end_ns.load());
  if (const CuptiHooks* hooks = interface().hooks.load()) {
    thread_state().inside = Inside::kResource;
    hooks->resource(CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING, context, nullptr);
    thread_state().inside = Inside::kNothing;
    hooks->context_destroyed(context);
  }
  if (thread_state().context == context) thread_state().context = nullptr;
  return CUDA_SUCCESS;  // kept for ever: late records may name it
}

FAKE_EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
  if (const CUresult refused = plain_call("cuCtxSetCurrent")) return refused;
  thread_state().context = context;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
  if (const CUresult refused = plain_call("cuCtxGetCurrent")) return refused;
  *context = thread_state().context;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuCtxGetDevice(CUdevice* device) {
  if (const CUresult refused = plain_call("cuCtxGetDevice")) return refused;
  *device = static_cast<CUdevice>(current_context()->device);
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuCtxSynchronize(void) {
  Api api(CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize, "cuCtxSynchronize",
          nullptr);
  if (api.allowed()) wait_gpu(driver().last_gpu_end_ns.load());
  return static_cast<CUresult>(api.finish(0));
}

FAKE_EXPORT CUresult cuStreamCreate(CUstream* stream, unsigned int) {
  if (const CUresult refused = plain_call("cuStreamCreate")) return refused;
  auto* fresh = new Stream;
  fresh->id = driver().next_stream.fetch_add(1);
  *stream = reinterpret_cast<CUstream>(fresh);
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuStreamDestroy_v2(CUstream) { return plain_call("cuStreamDestroy_v2"); }

FAKE_EXPORT CUresult cuStreamSynchronize(CUstream stream) {
  cuStreamSynchronize_params params{stream};
  Api api(CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuStreamSynchronize,
          "cuStreamSynchronize", &params);
  if (api.allowed()) {
    Stream* on = stream_of(current_context(), stream, false);
    uint64_t until = 0;
    {
      std::lock_guard lock(on->mutex);
      until = on->last_end_ns;
    }
    wait_gpu(until);
  }
  return static_cast<CUresult>(api.finish(0));
}

// SPDX-License-Identifier: Apache-2.0
// Allocation, copies and fills. Device memory is host memory that nobody reads: copies move no
// bytes, they only take time (25 bytes a ns and 1 µs more, fills four times that).
#include <cstdlib>

#include "tests/fake_cuda/driver/state.h"

namespace fakecuda {

void capture(Stream* stream, const Execution& work, const Function* function, uint64_t duration_ns);
bool is_capturing(Stream* stream);

namespace {

constexpr uint64_t kBaseNs = 1000;
constexpr uint64_t kCopyBytesPerNs = 25;
constexpr uint64_t kFillBytesPerNs = 100;

struct Work {
  uint32_t kind;
  uint32_t copy_kind;
  uint64_t bytes;
  uint32_t value;
};

Work copy(uint32_t copy_kind, uint64_t bytes) {
  return {copy_kind == CUPTI_ACTIVITY_MEMCPY_KIND_PTOP ? CUPTI_ACTIVITY_KIND_MEMCPY2
                                                       : CUPTI_ACTIVITY_KIND_MEMCPY,
          copy_kind, bytes, 0};
}

Work fill(uint32_t value, uint64_t bytes) { return {CUPTI_ACTIVITY_KIND_MEMSET, 0, bytes, value}; }

uint32_t direction(CUmemorytype from, CUmemorytype to) {
  if (from == CU_MEMORYTYPE_HOST) {
    return to == CU_MEMORYTYPE_HOST ? CUPTI_ACTIVITY_MEMCPY_KIND_HTOH
                                    : CUPTI_ACTIVITY_MEMCPY_KIND_HTOD;
  }
  return to == CU_MEMORYTYPE_HOST ? CUPTI_ACTIVITY_MEMCPY_KIND_DTOH
                                  : CUPTI_ACTIVITY_MEMCPY_KIND_DTOD;
}

CUresult transfer(uint32_t cbid, const char* name, const void* params, const Work& what,
                  CUstream stream, bool per_thread, bool blocking) {
  Context* context = interface().forked() ? nullptr : current_context();
  Stream* on = context ? stream_of(context, stream, per_thread) : nullptr;
  const bool capturing = on && is_capturing(on);
  Api api(CUPTI_CB_DOMAIN_DRIVER_API, cbid, name, params, nullptr, false, capturing);
  if (!api.allowed() || on == nullptr)
    return static_cast<CUresult>(api.finish(CUDA_ERROR_NOT_INITIALIZED));
  Execution work{};
  work.kind = what.kind;
  work.correlation = api.correlation();
  work.bytes = what.bytes;
  work.copy_kind = what.copy_kind;
  work.memset_value = what.value;
  const uint64_t rate = what.kind == CUPTI_ACTIVITY_KIND_MEMSET ? kFillBytesPerNs : kCopyBytesPerNs;
  const uint64_t duration_ns = kBaseNs + what.bytes / rate;
  if (capturing) {
    capture(on, work, nullptr, duration_ns);
  } else {
    execute(context, on, work, nullptr, duration_ns, false);
    if (blocking && setting(Key::kInstant) == 0) wait_gpu(driver().last_gpu_end_ns.load());
  }
  return static_cast<CUresult>(api.finish(0));
}

}  // namespace
}  // namespace fakecuda

using namespace fakecuda;

#define PARAMS(...) __VA_ARGS__
// One driver entry and its per-thread-stream twin.
#define FAKE_TRANSFER(name, twin, arguments, values, what, stream, blocking)                  \
  FAKE_EXPORT CUresult name(arguments) {                                                      \
    name##_params params{values};                                                             \
    return transfer(CUPTI_DRIVER_TRACE_CBID_##name, #name, &params, what, stream, false,      \
                    blocking);                                                                \
  }                                                                                           \
  FAKE_EXPORT CUresult name##twin(arguments) {                                                \
    name##_params params{values};                                                             \
    return transfer(CUPTI_DRIVER_TRACE_CBID_##name##twin, #name #twin, &params, what, stream, \
                    true, blocking);                                                          \
  }

FAKE_TRANSFER(cuMemcpyHtoD_v2, _ptds, PARAMS(CUdeviceptr dst, const void* src, size_t n),
              PARAMS(dst, src, n), copy(CUPTI_ACTIVITY_MEMCPY_KIND_HTOD, n), nullptr, true)
FAKE_TRANSFER(cuMemcpyDtoH_v2, _ptds, PARAMS(void* dst, CUdeviceptr src, size_t n),
              PARAMS(dst, src, n), copy(CUPTI_ACTIVITY_MEMCPY_KIND_DTOH, n), nullptr, true)
FAKE_TRANSFER(cuMemcpyDtoD_v2, _ptds, PARAMS(CUdeviceptr dst, CUdeviceptr src, size_t n),
              PARAMS(dst, src, n), copy(CUPTI_ACTIVITY_MEMCPY_KIND_DTOD, n), nullptr, false)
FAKE_TRANSFER(cuMemcpy, _ptds, PARAMS(CUdeviceptr dst, CUdeviceptr src, size_t n),
              PARAMS(dst, src, n), copy(CUPTI_ACTIVITY_MEMCPY_KIND_DTOD, n), nullptr, true)
FAKE_TRANSFER(cuMemcpyHtoDAsync_v2, _ptsz,
              PARAMS(CUdeviceptr dst, const void* src, size_t n, CUstream stream),
              PARAMS(dst, src, n, stream), copy(CUPTI_ACTIVITY_MEMCPY_KIND_HTOD, n), stream, false)
FAKE_TRANSFER(cuMemcpyDtoHAsync_v2, _ptsz,
              PARAMS(void* dst, CUdeviceptr src, size_t n, CUstream stream),
              PARAMS(dst, src, n, stream), copy(CUPTI_ACTIVITY_MEMCPY_KIND_DTOH, n), stream, false)
FAKE_TRANSFER(cuMemcpyDtoDAsync_v2, _ptsz,
              PARAMS(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream),
              PARAMS(dst, src, n, stream), copy(CUPTI_ACTIVITY_MEMCPY_KIND_DTOD, n), stream, false)
FAKE_TRANSFER(cuMemcpyAsync, _ptsz,
              PARAMS(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream),
              PARAMS(dst, src, n, stream), copy(CUPTI_ACTIVITY_MEMCPY_KIND_DTOD, n), stream, false)
FAKE_TRANSFER(cuMemcpyPeer, _ptds,
              PARAMS(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t n),
              PARAMS(dst, to, src, from, n), copy(CUPTI_ACTIVITY_MEMCPY_KIND_PTOP, n), nullptr,
              false)
FAKE_TRANSFER(cuMemcpyPeerAsync, _ptsz,
              PARAMS(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t n,
                     CUstream stream),
              PARAMS(dst, to, src, from, n, stream), copy(CUPTI_ACTIVITY_MEMCPY_KIND_PTOP, n),
              stream, false)
FAKE_TRANSFER(cuMemcpy2D_v2, _ptds, PARAMS(const CUDA_MEMCPY2D* c), PARAMS(c),
              copy(direction(c->srcMemoryType, c->dstMemoryType), c->WidthInBytes * c->Height),
              nullptr, true)
FAKE_TRANSFER(cuMemcpy2DUnaligned_v2, _ptds, PARAMS(const CUDA_MEMCPY2D* c), PARAMS(c),
              copy(direction(c->srcMemoryType, c->dstMemoryType), c->WidthInBytes * c->Height),
              nullptr, true)
FAKE_TRANSFER(cuMemcpy2DAsync_v2, _ptsz, PARAMS(const CUDA_MEMCPY2D* c, CUstream stream),
              PARAMS(c, stream),
              copy(direction(c->srcMemoryType, c->dstMemoryType), c->WidthInBytes * c->Height),
              stream, false)
FAKE_TRANSFER(cuMemcpy3D_v2, _ptds, PARAMS(const CUDA_MEMCPY3D* c), PARAMS(c),
              copy(direction(c->srcMemoryType, c->dstMemoryType),
                   c->WidthInBytes * c->Height * c->Depth),
              nullptr, true)
FAKE_TRANSFER(cuMemcpy3DAsync_v2, _ptsz, PARAMS(const CUDA_MEMCPY3D* c, CUstream stream),
              PARAMS(c, stream),
              copy(direction(c->srcMemoryType, c->dstMemoryType),
                   c->WidthInBytes * c->Height * c->Depth),
              stream, false)
FAKE_TRANSFER(cuMemsetD8_v2, _ptds, PARAMS(CUdeviceptr dst, unsigned char v, size_t n),
              PARAMS(dst, v, n), fill(v, n), nullptr, false)
FAKE_TRANSFER(cuMemsetD16_v2, _ptds, PARAMS(CUdeviceptr dst, unsigned short v, size_t n),
              PARAMS(dst, v, n), fill(v, 2 * n), nullptr, false)
FAKE_TRANSFER(cuMemsetD32_v2, _ptds, PARAMS(CUdeviceptr dst, unsigned int v, size_t n),
              PARAMS(dst, v, n), fill(v, 4 * n), nullptr, false)
FAKE_TRANSFER(cuMemsetD2D8_v2, _ptds,
              PARAMS(CUdeviceptr dst, size_t pitch, unsigned char v, size_t w, size_t h),
              PARAMS(dst, pitch, v, w, h), fill(v, w* h), nullptr, false)
FAKE_TRANSFER(cuMemsetD2D32_v2, _ptds,
              PARAMS(CUdeviceptr dst, size_t pitch, unsigned int v, size_t w, size_t h),
              PARAMS(dst, pitch, v, w, h), fill(v, 4 * w * h), nullptr, false)
FAKE_TRANSFER(cuMemsetD8Async, _ptsz,
              PARAMS(CUdeviceptr dst, unsigned char v, size_t n, CUstream stream),
              PARAMS(dst, v, n, stream), fill(v, n), stream, false)
FAKE_TRANSFER(cuMemsetD16Async, _ptsz,
              PARAMS(CUdeviceptr dst, unsigned short v, size_t n, CUstream stream),
              PARAMS(dst, v, n, stream), fill(v, 2 * n), stream, false)
FAKE_TRANSFER(cuMemsetD32Async, _ptsz,
              PARAMS(CUdeviceptr dst, unsigned int v, size_t n, CUstream stream),
              PARAMS(dst, v, n, stream), fill(v, 4 * n), stream, false)
FAKE_TRANSFER(cuMemsetD2D8Async, _ptsz,
              PARAMS(CUdeviceptr dst, size_t pitch, unsigned char v, size_t w, size_t h,
                     CUstream stream),
              PARAMS(dst, pitch, v, w, h, stream), fill(v, w* h), stream, false)
FAKE_TRANSFER(cuMemsetD2D32Async, _ptsz,
              PARAMS(CUdeviceptr dst, size_t pitch, unsigned int v, size_t w, size_t h,
                     CUstream stream),
              PARAMS(dst, pitch, v, w, h, stream), fill(v, 4 * w * h), stream, false)

FAKE_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* pointer, size_t bytes) {
  cuMemAlloc_v2_params params{pointer, bytes};
  Api api(CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2, "cuMemAlloc_v2",
          &params);
  if (api.allowed()) *pointer = reinterpret_cast<CUdeviceptr>(malloc(bytes));
  return static_cast<CUresult>(api.finish(0));
}

FAKE_EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer) {
  cuMemFree_v2_params params{pointer};
  Api api(CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2, "cuMemFree_v2",
          &params);
  if (api.allowed()) free(reinterpret_cast<void*>(pointer));
  return static_cast<CUresult>(api.finish(0));
}

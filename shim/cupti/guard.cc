// SPDX-License-Identifier: Apache-2.0
#define GPUPROF_CUPTI_GUARD_UNIT
#include "shim/cupti/guard.h"

#include <dlfcn.h>
#include <sched.h>

#include <atomic>

#include "shim/core/clock.h"
#include "shim/core/thread.h"

namespace gpuprof::cupti {
namespace {

// A libcupti without one of these cannot be used at all.
#define GPUPROF_CUPTI_REQUIRED(X)   \
  X(cuptiGetVersion)                \
  X(cuptiSubscribe)                 \
  X(cuptiUnsubscribe)               \
  X(cuptiEnableCallback)            \
  X(cuptiActivityRegisterCallbacks) \
  X(cuptiActivityEnable)            \
  X(cuptiActivityDisable)           \
  X(cuptiActivityFlushAll)          \
  X(cuptiActivityGetNextRecord)     \
  X(cuptiActivityGetNumDroppedRecords)

#define GPUPROF_CUPTI_OPTIONAL(X) \
  X(cuptiGetResultString)         \
  X(cuptiGetDeviceId)             \
  X(cuptiGetContextId)            \
  X(cuptiActivitySetAttribute)    \
  X(cuptiRegisterComputeCrcCallback)

// Optional as a whole: without one of them there is no PC sampling.
#define GPUPROF_CUPTI_PC_SAMPLING(X)          \
  X(cuptiPCSamplingEnable)                    \
  X(cuptiPCSamplingDisable)                   \
  X(cuptiPCSamplingStart)                     \
  X(cuptiPCSamplingStop)                      \
  X(cuptiPCSamplingSetConfigurationAttribute) \
  X(cuptiPCSamplingGetConfigurationAttribute) \
  X(cuptiPCSamplingGetNumStallReasons)        \
  X(cuptiPCSamplingGetStallReasons)           \
  X(cuptiPCSamplingGetData)

/// The entry points. Written once by bind(), before any callback can exist.
struct Table {
#define X(name) decltype(&::name) name;
  GPUPROF_CUPTI_REQUIRED(X) GPUPROF_CUPTI_OPTIONAL(X) GPUPROF_CUPTI_PC_SAMPLING(X)
#undef X
};
Table table;

/// Re-entrant lock: word 0 free, 1 taken, 2 taken and waited for.
std::atomic<uint32_t> lock_word{0};
/// Identity of the holder; null while nobody holds the lock. Only the holder's own thread can
/// see its own identity here, so a relaxed load decides re-entrance.
std::atomic<const char*> lock_owner{nullptr};
uint32_t lock_depth = 0;
/// Its address identifies the thread without a system call.
__thread char self_marker;

bool reenter() noexcept {
  if (lock_owner.load(std::memory_order_relaxed) != &self_marker) return false;
  ++lock_depth;
  return true;
}

void taken() noexcept {
  lock_owner.store(&self_marker, std::memory_order_relaxed);
  lock_depth = 1;
}

}  // namespace

Guard Guard::try_lock() noexcept {
  if (reenter()) return Guard(true);
  uint32_t free = 0;
  if (!lock_word.compare_exchange_strong(free, 1, std::memory_order_acquire)) return Guard(false);
  taken();
  return Guard(true);
}

Guard Guard::try_lock_for(uint64_t patience_ns) noexcept {
  uint64_t begin_ns = 0;
  for (;;) {
    Guard guard = try_lock();
    if (guard.held()) return guard;
    const uint64_t now_ns = shim::monotonic_ns();
    if (begin_ns == 0) begin_ns = now_ns;
    if (now_ns - begin_ns >= patience_ns) return guard;
    sched_yield();
  }
}

Guard Guard::lock() noexcept {
  if (reenter()) return Guard(true);
  uint32_t word = 0;
  if (!lock_word.compare_exchange_strong(word, 1, std::memory_order_acquire)) {
    while (lock_word.exchange(2, std::memory_order_acquire) != 0) {
      shim::futex_wait(lock_word, 2, UINT64_MAX);
    }
  }
  taken();
  return Guard(true);
}

Guard::~Guard() {
  if (!held_ || --lock_depth > 0) return;
  lock_owner.store(nullptr, std::memory_order_relaxed);
  if (lock_word.exchange(0, std::memory_order_release) == 2) shim::futex_wake(lock_word, 1);
}

const char* Guard::bind(void* library) const noexcept {
#define X(name)                                                               \
  table.name = reinterpret_cast<decltype(table.name)>(dlsym(library, #name)); \
  if (table.name == nullptr) return #name;
  GPUPROF_CUPTI_REQUIRED(X)
#undef X
#define X(name) table.name = reinterpret_cast<decltype(table.name)>(dlsym(library, #name));
  GPUPROF_CUPTI_OPTIONAL(X)
  GPUPROF_CUPTI_PC_SAMPLING(X)
#undef X
  return nullptr;
}

bool Guard::is_13_2(void* library) noexcept {
  return dlsym(library, "cuptiActivityGetStructSize") != nullptr &&
         dlsym(library, "cuptiActivityGetNextRecord_v2") == nullptr;
}

const void* Guard::library_address() const noexcept {
  return reinterpret_cast<const void*>(table.cuptiGetVersion);
}

CUptiResult Guard::version(uint32_t* api_version) const noexcept {
  return table.cuptiGetVersion(api_version);
}

CUptiResult Guard::subscribe(CUpti_SubscriberHandle* subscriber, CUpti_CallbackFunc callback,
                             void* user) const noexcept {
  return table.cuptiSubscribe(subscriber, callback, user);
}

CUptiResult Guard::unsubscribe(CUpti_SubscriberHandle subscriber) const noexcept {
  return table.cuptiUnsubscribe(subscriber);
}

CUptiResult Guard::enable_callback(bool enable, CUpti_SubscriberHandle subscriber, uint32_t domain,
                                   uint32_t id) const noexcept {
  return table.cuptiEnableCallback(enable ? 1 : 0, subscriber,
                                   static_cast<CUpti_CallbackDomain>(domain), id);
}

CUptiResult Guard::register_buffers(CUpti_BuffersCallbackRequestFunc requested,
                                    CUpti_BuffersCallbackCompleteFunc completed) const noexcept {
  return table.cuptiActivityRegisterCallbacks(requested, completed);
}

CUptiResult Guard::activity_enable(CUpti_ActivityKind kind) const noexcept {
  return table.cuptiActivityEnable(kind);
}

CUptiResult Guard::activity_disable(CUpti_ActivityKind kind) const noexcept {
  return table.cuptiActivityDisable(kind);
}

CUptiResult Guard::flush_all(bool forced) const noexcept {
  return table.cuptiActivityFlushAll(forced ? 1 : 0);
}

CUptiResult Guard::set_attribute(uint32_t attribute, size_t* value_size,
                                 void* value) const noexcept {
  if (table.cuptiActivitySetAttribute == nullptr) return CUPTI_ERROR_NOT_SUPPORTED;
  return table.cuptiActivitySetAttribute(static_cast<CUpti_ActivityAttribute>(attribute),
                                         value_size, value);
}

CUptiResult Guard::device_of(CUcontext context, uint32_t* device) const noexcept {
  if (table.cuptiGetDeviceId == nullptr) return CUPTI_ERROR_NOT_SUPPORTED;
  return table.cuptiGetDeviceId(context, device);
}

CUptiResult Guard::context_id_of(CUcontext context, uint32_t* id) const noexcept {
  if (table.cuptiGetContextId == nullptr) return CUPTI_ERROR_NOT_SUPPORTED;
  return table.cuptiGetContextId(context, id);
}

CUptiResult Guard::register_hash(CUpti_ComputeCrcCallbackFunc callback) const noexcept {
  if (table.cuptiRegisterComputeCrcCallback == nullptr) return CUPTI_ERROR_NOT_SUPPORTED;
  return table.cuptiRegisterComputeCrcCallback(callback);
}

const char* Guard::missing_pc_function() const noexcept {
#define X(name) \
  if (table.name == nullptr) return #name;
  GPUPROF_CUPTI_PC_SAMPLING(X)
#undef X
  return nullptr;
}

// The parameter structs have had the same members since 11.3, so their sizes are the headers'.
CUptiResult Guard::pc_enable(CUcontext context) const noexcept {
  CUpti_PCSamplingEnableParams params = {};
  params.size = CUpti_PCSamplingEnableParamsSize;
  params.ctx = context;
  return table.cuptiPCSamplingEnable(&params);
}

CUptiResult Guard::pc_disable(CUcontext context) const noexcept {
  CUpti_PCSamplingDisableParams params = {};
  params.size = CUpti_PCSamplingDisableParamsSize;
  params.ctx = context;
  return table.cuptiPCSamplingDisable(&params);
}

CUptiResult Guard::pc_start(CUcontext context) const noexcept {
  CUpti_PCSamplingStartParams params = {};
  params.size = CUpti_PCSamplingStartParamsSize;
  params.ctx = context;
  return table.cuptiPCSamplingStart(&params);
}

CUptiResult Guard::pc_stop(CUcontext context) const noexcept {
  CUpti_PCSamplingStopParams params = {};
  params.size = CUpti_PCSamplingStopParamsSize;
  params.ctx = context;
  return table.cuptiPCSamplingStop(&params);
}

CUptiResult Guard::pc_set_attributes(CUcontext context,
                                     CUpti_PCSamplingConfigurationInfo* attributes,
                                     size_t count) const noexcept {
  CUpti_PCSamplingConfigurationInfoParams params = {};
  params.size = CUpti_PCSamplingConfigurationInfoParamsSize;
  params.ctx = context;
  params.numAttributes = count;
  params.pPCSamplingConfigurationInfo = attributes;
  return table.cuptiPCSamplingSetConfigurationAttribute(&params);
}

CUptiResult Guard::pc_get_attributes(CUcontext context,
                                     CUpti_PCSamplingConfigurationInfo* attributes,
                                     size_t count) const noexcept {
  CUpti_PCSamplingConfigurationInfoParams params = {};
  params.size = CUpti_PCSamplingConfigurationInfoParamsSize;
  params.ctx = context;
  params.numAttributes = count;
  params.pPCSamplingConfigurationInfo = attributes;
  return table.cuptiPCSamplingGetConfigurationAttribute(&params);
}

CUptiResult Guard::pc_stall_count(CUcontext context, size_t* count) const noexcept {
  CUpti_PCSamplingGetNumStallReasonsParams params = {};
  params.size = CUpti_PCSamplingGetNumStallReasonsParamsSize;
  params.ctx = context;
  params.numStallReasons = count;
  return table.cuptiPCSamplingGetNumStallReasons(&params);
}

CUptiResult Guard::pc_stall_reasons(CUcontext context, size_t count, uint32_t* indices,
                                    char** names) const noexcept {
  CUpti_PCSamplingGetStallReasonsParams params = {};
  params.size = CUpti_PCSamplingGetStallReasonsParamsSize;
  params.ctx = context;
  params.numStallReasons = count;
  params.stallReasonIndex = indices;
  params.stallReasons = names;
  return table.cuptiPCSamplingGetStallReasons(&params);
}

CUptiResult Guard::pc_get_data(CUcontext context, void* data) const noexcept {
  CUpti_PCSamplingGetDataParams params = {};
  params.size = CUpti_PCSamplingGetDataParamsSize;
  params.ctx = context;
  params.pcSamplingData = data;
  return table.cuptiPCSamplingGetData(&params);
}

const char* Guard::describe(CUptiResult result) const noexcept {
  const char* text = nullptr;
  if (table.cuptiGetResultString != nullptr &&
      table.cuptiGetResultString(result, &text) == CUPTI_SUCCESS && text != nullptr) {
    return text;
  }
  return "unknown CUPTI result";
}

const CUpti_Activity* CompletedBuffer::next() noexcept {
  if (table.cuptiActivityGetNextRecord(data_, valid_bytes_, &record_) != CUPTI_SUCCESS) {
    return nullptr;
  }
  return record_;
}

uint64_t CompletedBuffer::dropped() const noexcept {
  size_t count = 0;
  if (table.cuptiActivityGetNumDroppedRecords(context_, stream_, &count) != CUPTI_SUCCESS) return 0;
  return count;
}

}  // namespace gpuprof::cupti

// SPDX-License-Identifier: Apache-2.0
// The private interface between the fake libcuda and the fake libcupti. libcuda exports
// fake_cuda_interface(); libcupti finds it by dlsym in the libcuda.so.1 that is mapped and installs
// its hooks there. Everything lives for ever: CUPTI's threads outlive static destructors.
#pragma once

#include <cuda.h>
#include <cupti.h>
#include <cupti_pcsampling.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>

namespace fakecuda {

/// Settings and faults; names and meanings are in settings.cc and README.md.
enum class Key : uint32_t {
  kApi,
  kDriver,
  kDevices,
  kInstant,
  kRequestOnWorker,
  kCompleteOnFlusher,
  kSubscribeBusy,
  kSubscribeFail,
  kSubscribeMs,
  kDropEvery,
  kZeroTimesEvery,
  kReverseTimesEvery,
  kLateMs,
  kReorder,
  kCorrelation,
  kOtherClient,
  kFlushHang,
  kFlushWaits,
  kCancelAt,
  kClockStepNs,
  kLaunchFailEvery,
  kQueueNs,
  kTemporaryModules,
  kEnableFail,
  kCallbackFail,
  kRegisterFail,
  kDefaultDurationNs,
  kNoDriverLaunch,
  kWorkerMs,
  kFatalError,
  kSms,
  kClockKhz,
  kComputeCapability,
  kPcFail,
  kPcAttributeFail,
  kPcDefaultPeriod,
  kPcEnableMs,
  kPcDropEvery,
  kPcOomAt,
  kPcOom,
  kUnsubscribeFail,
  kGraphPcData,
  kHashReplaced,
  kDropOnDevice,
  kPcStopMs,
  kPcNoPerfworks,
  kFirstGpu,
  kInitFail,
  kInitFailLate,
  kCount,
};

/// What the calling thread is in the middle of, as far as the rules care.
enum class Inside : uint32_t {
  kNothing,
  kInjection,
  kApiEnter,
  kApiExit,
  kLaunchEnter,
  kLaunchExit,
  kContextCreated,
  kResource,
  kHash,
  kBufferRequested,
  kBufferCompleted,
};

struct TruthTable;

struct ThreadState {
  Inside inside = Inside::kNothing;
  bool capturing = false;    // the API call in progress works on a stream that is captured
  uint32_t api_depth = 0;    // runtime call > nested driver call
  uint32_t correlation = 0;  // of the outermost call
  uint32_t stuck = 0;        // not 0: the id that every call of this thread has from now on
  uint32_t cupti_depth = 0;  // guarded CUPTI functions on this thread's stack
  int tid = 0;
  const char* label = nullptr;
  TruthTable* truth = nullptr;
  CUcontext context = nullptr;
  void* producer = nullptr;  // libcupti's record queue of this thread
  uint64_t correlation_data = 0;
};

/// One API call that CUPTI can see.
struct ApiCall {
  CUpti_CallbackDomain domain;
  uint32_t cbid;
  const char* name;
  const void* params;
  const char* symbol;  // kernel name, launches only
  CUcontext context;
  uint32_t context_id;
  uint32_t correlation;
  bool launch;  // a launch in the sense of the rules: kernels and graphs
  void* result;
  uint64_t data;  // *correlationData
  bool entered;   // CUPTI made its ENTER callback
};

/// Part of a kernel's samples: `weight` of the kernel's total fall on this instruction with this
/// stall (kStalls), `not_issued` of them in cycles in which nothing was issued.
struct SampledPc {
  uint32_t offset;
  uint32_t stall;
  uint32_t weight;
  uint32_t not_issued;
  uint64_t end;  // sum of the weights up to this one, itself included
};

/// What PC sampling sees of a function of a module. Lives for ever.
struct KernelCode {
  const char* name;
  uint32_t module_id;
  uint32_t function_index;  // section index of its .text in a real cubin
  uint64_t cubin_crc;
  const SampledPc* pcs;
  uint32_t pc_count;
  uint64_t total_weight;
  uint64_t step;  // spread_step of it
  // Where recorded: total_weight samples per this much kernel time at this period. 0: by the model.
  uint64_t per_ns;
  uint32_t at_period;
};

/// One piece of work on the fake GPU; times are the CUPTI clock's.
struct Execution {
  uint32_t kind;  // CUpti_ActivityKind that its record has
  uint32_t correlation;
  uint64_t start_ns;
  uint64_t end_ns;
  const char* name;
  uint64_t bytes;
  uint64_t graph_node;
  uint32_t graph_id;
  uint32_t device_id;
  uint32_t context_id;
  uint32_t stream_id;
  uint32_t copy_kind;
  uint32_t memset_value;
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t dynamic_shared;
  uint32_t static_shared;
  uint32_t registers;
  const KernelCode* code;  // kernels only
};

/// Filled by libcupti. Called on the application's thread, with no lock of libcuda held.
struct CuptiHooks {
  void (*api)(ApiCall& call, CUpti_ApiCallbackSite site);
  /// True if a record was queued, i.e. the kind is enabled.
  bool (*execution)(const Execution& execution);
  void (*resource)(uint32_t cbid, CUcontext context, void* descriptor);
  /// Asks the hash callback and then makes MODULE_LOADED. The key of the module's PC records.
  uint64_t (*module_loaded)(CUcontext context, uint32_t module_id, const char* image, size_t size,
                            bool temporary);
  void (*module_unloading)(CUcontext context, uint32_t module_id, const char* image, size_t size);
  /// The context is gone, its CONTEXT_DESTROY_STARTING has been made.
  void (*context_destroyed)(CUcontext context);
  /// Writes the ground truth of PC sampling, a JSON member with a comma behind it.
  void (*write_truth)(FILE* out);
};

/// Counters that libcupti adds to the truth.
struct CuptiTotals {
  std::atomic<uint64_t> queued{0}, delivered{0}, dropped{0}, zero_times{0}, reversed{0},
      incomplete{0}, buffers_requested{0}, buffers_completed{0}, callbacks{0}, subscribes{0},
      unsubscribes{0}, enables{0}, disables{0}, flushes{0};
};

/// libcuda's side.
struct Interface {
  std::atomic<const CuptiHooks*> hooks{nullptr};
  CuptiTotals totals;
  /// Bit context id % 64: kernels of that context run one at a time (serialized PC sampling).
  std::atomic<uint64_t> serialized{0};
  std::atomic<uint32_t> serialized_windows{0};  // how often a bit was set
  std::atomic<uint32_t> switching{0};           // threads that switch activity or PC sampling
  ThreadState& (*thread)();
  uint64_t (*setting)(Key key);
  /// Which GPU of the machine a device of this process is (CUDA_VISIBLE_DEVICES, first_gpu).
  uint64_t (*gpu_of)(uint32_t device);
  /// Takes one from a counting fault (n tries); false once it is used up.
  bool (*consume)(Key key);
  /// For the keyed faults: error code for `id`, 0 if none was asked for.
  uint32_t (*failure)(Key key, uint32_t domain, uint32_t id);
  void (*violation)(const char* rule, const char* format, ...)
      __attribute__((format(printf, 2, 3)));
  /// Ends the process with status 99 at once: for what would hang or crash the real thing.
  void (*fatal)(const char* rule, const char* format, ...) __attribute__((format(printf, 2, 3)));
  /// CUPTI's clock: CLOCK_REALTIME plus the injected steps, ns.
  uint64_t (*now)();
  /// True while an API launch is in progress anywhere or one ended in the last 50 ms.
  bool (*launching)();
  bool (*forked)();
  uint32_t (*context_id)(CUcontext context);
  uint32_t (*device_id)(CUcontext context);
  uint32_t (*stream_id)(CUcontext context, CUstream stream, bool per_thread);
  bool (*initialised)();
};

}  // namespace fakecuda

extern "C" fakecuda::Interface* fake_cuda_interface(void);

// SPDX-License-Identifier: Apache-2.0
// libgpu-profiled-record.so: injected by CUDA_INJECTION64_PATH, it writes what the program did into
// the folder $GPU_PROFILED_RECORD at exit.
//
// It obeys the same rules as the shim (docs and tests/fake_cuda/README.md): kernel activity is
// enabled in InitializeInjection, PC sampling in CONTEXT_CREATED, drains run in launch-EXIT and
// unload callbacks; one thread at a time is inside CUPTI. Unlike the shim it may allocate.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mutex>

#include "tests/record/cupti_calls.h"
#include "tests/record/recording.h"

namespace gpuprof::record {
namespace {

constexpr uint32_t kBothKinds = 27;        // CUDA 12.9
constexpr uint32_t kWithCorrelation = 22;  // CUDA 12.4: PC records of 64 bytes
constexpr size_t kBufferBytes = 1 << 20;
constexpr size_t kPcs = 2048;
constexpr size_t kReasonsMost = 64;
constexpr uint64_t kDrainNs = 50'000'000;
constexpr size_t kHardwareBytes = 128u << 20;
constexpr const char* kStallPrefix = "smsp__pcsamp_warps_issue_stalled_";
constexpr const char* kNotIssued = "_not_issued";

struct PcBuffer {
  std::vector<uint8_t> records;
  std::vector<CUpti_PCSamplingStallReason> stalls;
  CUpti_PCSamplingData data{};
};

/// PC sampling of one context.
struct Context {
  CUcontext handle;
  std::map<uint32_t, std::string> reasons;
  PcBuffer drained;     // that GetData fills
  PcBuffer registered;  // that CUPTI fills: GetData crashes where there is none (13.0, H200)
};

struct Recorder {
  const CuptiCalls* cupti = nullptr;
  uint32_t version = 0;
  pid_t owner = 0;
  std::string directory;
  uint32_t wanted_period = 0;
  std::mutex cupti_mutex;  // one thread inside CUPTI; taken before data_mutex
  std::mutex data_mutex;
  std::vector<Context*> contexts;
  std::atomic<uint64_t> drained_ns{0};
  CUpti_SubscriberHandle subscriber = nullptr;
  Recording recording;
};

Recorder& recorder() {
  static auto* instance = new Recorder;
  return *instance;
}

uint64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

Thread& this_thread() {
  thread_local Thread* mine = nullptr;
  if (mine == nullptr) {
    mine = new Thread;
    mine->tid = gettid();
    mine->first_ns = now_ns();
    std::lock_guard lock(recorder().data_mutex);
    recorder().recording.threads.push_back(mine);
  }
  return *mine;
}

size_t stride() { return recorder().version >= kWithCorrelation ? 64 : 56; }

/// A key of the module's place in the order of loading: unlike a hash of its bytes it tells two
/// loads of one image apart.
void on_module(const void* image, size_t size, uint64_t* key) {
  std::lock_guard lock(recorder().data_mutex);
  auto& modules = recorder().recording.modules;
  *key = modules.size() + 1;
  const auto* bytes = static_cast<const char*>(image);
  modules.push_back({*key, {bytes, bytes + size}});
}

void on_buffer_wanted(uint8_t** buffer, size_t* size, size_t* most) {
  *buffer = static_cast<uint8_t*>(aligned_alloc(8, kBufferBytes));
  *size = kBufferBytes;
  *most = 0;
}

template <typename Record>
Execution execution_of(const Record& record) {
  Execution e{};
  e.kind = record.kind;
  e.start_ns = record.start;
  e.end_ns = record.end;
  e.device = record.deviceId;
  e.graph_id = record.graphId;
  e.graph_node = record.graphNodeId;
  return e;
}

void keep(uint32_t correlation, Execution e) {
  Recording& recording = recorder().recording;
  if (e.start_ns == 0 || e.end_ns < e.start_ns) {
    ++recording.invalid;
    return;
  }
  if (e.device + 1 > recording.devices) recording.devices = e.device + 1;
  recording.executions[correlation].push_back(std::move(e));
}

void read_record(const CUpti_Activity* record) {
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto& kernel = *reinterpret_cast<const CUpti_ActivityKernel5*>(record);
      Execution e = execution_of(kernel);
      e.name = kernel.name != nullptr ? kernel.name : "";
      return keep(kernel.correlationId, std::move(e));
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto& copy = *reinterpret_cast<const CUpti_ActivityMemcpy4*>(record);
      Execution e = execution_of(copy);
      e.bytes = copy.bytes;
      e.copy_kind = copy.copyKind;
      return keep(copy.correlationId, std::move(e));
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto& fill = *reinterpret_cast<const CUpti_ActivityMemset3*>(record);
      Execution e = execution_of(fill);
      e.bytes = fill.bytes;
      return keep(fill.correlationId, std::move(e));
    }
    default:
      return;
  }
}

void on_buffer_full(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  {
    std::lock_guard lock(recorder().data_mutex);
    CUpti_Activity* record = nullptr;
    while (recorder().cupti->get_next_record(buffer, valid, &record) == CUPTI_SUCCESS)
      read_record(record);
  }
  free(buffer);
}

void read_reasons(Context& context) {
  const CuptiCalls& cupti = *recorder().cupti;
  size_t count = 0;
  CUpti_PCSamplingGetNumStallReasonsParams number{CUpti_PCSamplingGetNumStallReasonsParamsSize,
                                                  nullptr, context.handle, &count};
  if (cupti.pc_num_reasons(&number) != CUPTI_SUCCESS || count > kReasonsMost) return;
  std::vector<uint32_t> indexes(count);
  std::vector<char> text(count * CUPTI_STALL_REASON_STRING_SIZE);
  std::vector<char*> names;
  for (size_t i = 0; i < count; ++i) names.push_back(&text[i * CUPTI_STALL_REASON_STRING_SIZE]);
  CUpti_PCSamplingGetStallReasonsParams reasons{CUpti_PCSamplingGetStallReasonsParamsSize,
                                                nullptr,
                                                context.handle,
                                                count,
                                                indexes.data(),
                                                names.data()};
  if (cupti.pc_reasons(&reasons) != CUPTI_SUCCESS) return;
  for (size_t i = 0; i < count; ++i) context.reasons[indexes[i]] = names[i];
}

void lay_out(PcBuffer& buffer) {
  buffer.records.assign(kPcs * stride(), 0);
  buffer.stalls.resize(kPcs * kReasonsMost);
  buffer.data.size = recorder().version >= 19 ? 80 : 72;
  buffer.data.collectNumPcs = kPcs;
  buffer.data.pPcData = reinterpret_cast<CUpti_PCSamplingPCData*>(buffer.records.data());
  for (size_t i = 0; i < kPcs; ++i) {
    CUpti_PCSamplingPCData record{};
    record.size = stride();
    record.stallReason = &buffer.stalls[i * kReasonsMost];
    memcpy(&buffer.records[i * stride()], &record, stride());
  }
}

bool configure(Context& context) {
  CUpti_PCSamplingConfigurationInfo infos[3] = {};
  size_t used = 0;
  infos[used].attributeType = CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_SAMPLING_DATA_BUFFER;
  infos[used++].attributeData.samplingDataBufferData.samplingDataBuffer = &context.registered.data;
  infos[used].attributeType = CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_HARDWARE_BUFFER_SIZE;
  infos[used++].attributeData.hardwareBufferSizeData.hardwareBufferSize = kHardwareBytes;
  if (recorder().wanted_period != 0) {
    infos[used].attributeType = CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_SAMPLING_PERIOD;
    infos[used++].attributeData.samplingPeriodData.samplingPeriod = recorder().wanted_period;
  }
  CUpti_PCSamplingConfigurationInfoParams params{CUpti_PCSamplingConfigurationInfoParamsSize,
                                                 nullptr, context.handle, used, infos};
  if (recorder().cupti->pc_set(&params) != CUPTI_SUCCESS) return false;
  CUpti_PCSamplingConfigurationInfo period{};
  period.attributeType = CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_SAMPLING_PERIOD;
  params.numAttributes = 1;
  params.pPCSamplingConfigurationInfo = &period;
  if (recorder().cupti->pc_get(&params) != CUPTI_SUCCESS) return false;
  recorder().recording.period = period.attributeData.samplingPeriodData.samplingPeriod;
  return true;
}

/// With cupti_mutex held.
void sample_context(CUcontext handle) {
  CUpti_PCSamplingEnableParams enable{CUpti_PCSamplingEnableParamsSize, nullptr, handle};
  const CUptiResult result = recorder().cupti->pc_enable(&enable);
  auto* context = new Context;
  context->handle = handle;
  if (result == CUPTI_SUCCESS) read_reasons(*context);
  lay_out(context->drained);
  lay_out(context->registered);
  if (result != CUPTI_SUCCESS || !configure(*context)) {
    fprintf(stderr, "record: PC sampling of a context was refused: %d\n", result);
    return;
  }
  recorder().contexts.push_back(context);
}

void keep_samples(const Context& context, const CUpti_PCSamplingPCData& record) {
  for (size_t i = 0; i < record.stallReasonCount; ++i) {
    const auto found = context.reasons.find(record.stallReason[i].pcSamplingStallReasonIndex);
    if (found == context.reasons.end() || found->second.rfind(kStallPrefix, 0) != 0) continue;
    std::string reason = found->second.substr(strlen(kStallPrefix));
    const size_t tail = reason.find(kNotIssued);
    const bool all = tail == std::string::npos;
    if (!all) reason.resize(tail);
    Samples& samples =
        recorder()
            .recording.samples[{record.cubinCrc, record.functionName, record.pcOffset, reason}];
    (all ? samples.all : samples.not_issued) += record.stallReason[i].samples;
  }
}

/// With cupti_mutex held.
void drain(Context& context) {
  CUpti_PCSamplingData& data = context.drained.data;
  CUpti_PCSamplingGetDataParams params{CUpti_PCSamplingGetDataParamsSize, nullptr, context.handle,
                                       &data};
  do {
    const CUptiResult result = recorder().cupti->pc_get_data(&params);
    std::lock_guard lock(recorder().data_mutex);
    if (result != CUPTI_SUCCESS) {
      ++recorder().recording.pc_failures;
      return;
    }
    recorder().recording.pc_dropped += data.droppedSamples;
    for (size_t i = 0; i < data.totalNumPcs; ++i) {
      CUpti_PCSamplingPCData record{};
      memcpy(&record, &context.drained.records[i * stride()], stride());
      keep_samples(context, record);
    }
  } while (data.remainingNumPcs != 0 && data.totalNumPcs != 0);
}

void drain_all() {
  for (Context* context : recorder().contexts) drain(*context);
  recorder().drained_ns = now_ns();
}

bool cooperative(CUpti_CallbackId id) {
  return id == CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel ||
         id == CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel_ptsz;
}

bool launches(CUpti_CallbackId id) {
  switch (id) {
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel:
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz:
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx:
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz:
    case CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch:
    case CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch_ptsz:
      return true;
    default:
      return cooperative(id);
  }
}

void on_driver_call(CUpti_CallbackId id, const CUpti_CallbackData& call) {
  Recorder& r = recorder();
  if (call.callbackSite == CUPTI_API_ENTER) {
    Thread& thread = this_thread();
    thread.last_ns = now_ns();
    thread.calls.push_back({call.correlationId, cooperative(id)});
    return;
  }
  if (!launches(id) || now_ns() - r.drained_ns < kDrainNs) return;
  const std::unique_lock lock(r.cupti_mutex, std::try_to_lock);
  if (lock.owns_lock()) drain_all();
}

void on_resource(CUpti_CallbackId id, const CUpti_ResourceData& data) {
  Recorder& r = recorder();
  std::lock_guard lock(r.cupti_mutex);
  if (id == CUPTI_CBID_RESOURCE_CONTEXT_CREATED && r.version >= kBothKinds) {
    sample_context(data.context);
  } else {
    drain_all();
  }
}

void on_callback(void*, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) {
  if (getpid() != recorder().owner) return;
  if (domain == CUPTI_CB_DOMAIN_RESOURCE) {
    on_resource(id, *static_cast<const CUpti_ResourceData*>(data));
  } else {
    on_driver_call(id, *static_cast<const CUpti_CallbackData*>(data));
  }
}

/// CUPTI's decoder wakes every 100 ms: the last samples come only then.
void finish() {
  Recorder& r = recorder();
  if (getpid() != r.owner) return;
  usleep(400'000);
  {
    std::lock_guard lock(r.cupti_mutex);
    drain_all();
    r.cupti->flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  }
  std::lock_guard lock(r.data_mutex);
  write_session(r.recording, r.directory);
}

bool start() {
  Recorder& r = recorder();
  const char* directory = getenv("GPU_PROFILED_RECORD");
  r.cupti = load_cupti();
  if (directory == nullptr || r.cupti == nullptr) return false;
  r.owner = getpid();
  r.directory = directory;
  if (const char* period = getenv("GPU_PROFILED_RECORD_PERIOD"))
    r.wanted_period = static_cast<uint32_t>(strtoul(period, nullptr, 10));
  const CuptiCalls& cupti = *r.cupti;
  cupti.get_version(&r.version);
  cupti.register_hash(on_module);
  if (cupti.subscribe(&r.subscriber, on_callback, nullptr) != CUPTI_SUCCESS) return false;
  for (const CUpti_CallbackId id :
       {CUPTI_CBID_RESOURCE_CONTEXT_CREATED, CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING,
        CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING}) {
    cupti.enable_callback(1, r.subscriber, CUPTI_CB_DOMAIN_RESOURCE, id);
  }
  cupti.enable_domain(1, r.subscriber, CUPTI_CB_DOMAIN_DRIVER_API);
  cupti.register_callbacks(on_buffer_wanted, on_buffer_full);
  for (const auto kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                          CUPTI_ACTIVITY_KIND_MEMSET}) {
    cupti.activity_enable(kind);
  }
  atexit(finish);
  return true;
}

}  // namespace
}  // namespace gpuprof::record

extern "C" __attribute__((visibility("default"))) int InitializeInjection(void) {
  if (!gpuprof::record::start()) fprintf(stderr, "record: nothing is recorded\n");
  return 1;
}

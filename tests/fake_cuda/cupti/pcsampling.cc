// SPDX-License-Identifier: Apache-2.0
// The PC sampling API: who may call what when. What samples there are is pc_sampler.h's.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "tests/fake_cuda/cupti/gpu_lock.h"
#include "tests/fake_cuda/cupti/pc_hooks.h"
#include "tests/fake_cuda/cupti/pc_sampler.h"
#include "tests/fake_cuda/cupti/state.h"

using namespace fakecuda;

namespace {

// The first part of `pc_fail`.
enum Op : uint32_t {
  kEnable = 1,
  kDisable,
  kStart,
  kStop,
  kGetData,
  kSetConfiguration,
  kGetConfiguration,
  kGetReasons,
};

constexpr uint32_t kBothKinds = 27;        // CUDA 12.9: kernel activity beside PC sampling
constexpr uint32_t kWithCorrelation = 22;  // CUDA 12.4: PC records of 64 bytes
constexpr size_t kOldStride = 56;
static_assert(sizeof(CUpti_PCSamplingPCData) == 64 && sizeof(CUpti_PCSamplingData) == 80);

/// On a helper thread while the app launches each of these hung the application for good (H200).
/// `elsewhere`: another place where it may be called.
void check_place(const char* name, Inside elsewhere = Inside::kLaunchExit) {
  const Inside inside = driver_interface()->thread().inside;
  if (driver_interface()->thread().capturing) {
    driver_interface()->violation("captured", "%s in a launch whose stream is being captured",
                                  name);
  }
  if (inside == elsewhere) return;
  if (!safe_place(false)) {
    driver_interface()->violation("pc-thread",
                                  "%s outside a launch-EXIT callback while the app launches", name);
  }
}

/// To the threads that launch in a context one of another context is a helper thread.
/// `elsewhere`: a place where it may be called whoever launches there.
void check_owner(const char* name, CUcontext context, Inside elsewhere = Inside::kLaunchExit) {
  const ThreadState& thread = driver_interface()->thread();
  if (thread.inside == elsewhere && elsewhere != Inside::kLaunchExit) return;
  if (context == nullptr || context == thread.context || !pc_launched_elsewhere(context)) return;
  driver_interface()->violation(
      "pc-other-thread",
      "%s of a context that another thread launches in, from one of another context", name);
}

/// The injected failure of an operation, or CUPTI_SUCCESS.
CUptiResult injected(Op op) {
  return static_cast<CUptiResult>(driver_interface()->failure(Key::kPcFail, 0, op));
}

/// What is wrong with a call whatever the sampler's state, else CUPTI_SUCCESS.
template <typename Params>
CUptiResult refused(const Params* params, size_t size, Op op) {
  if (params == nullptr || params->size != size || params->ctx == nullptr ||
      params->pPriv != nullptr) {
    return CUPTI_ERROR_INVALID_PARAMETER;
  }
  return injected(op);
}

PcSampler* other_on_device(const PcSampler& mine) {
  for (PcSampler* sampler : pc_samplers()) {
    if (sampler != &mine && sampler->enabled && sampler->device() == mine.device()) return sampler;
  }
  return nullptr;
}

bool blackwell() { return driver_interface()->setting(Key::kComputeCapability) / 10 == 12; }

size_t own_data_size() { return api_version() >= 19 ? 80 : api_version() >= 17 ? 72 : 64; }

size_t stride() {
  return api_version() >= kWithCorrelation ? sizeof(CUpti_PCSamplingPCData) : kOldStride;
}

void sleep_ms(uint64_t ms) {
  timespec pause{static_cast<time_t>(ms / 1000), static_cast<long>(ms % 1000 * 1'000'000)};
  if (ms != 0) nanosleep(&pause, nullptr);
}

CUptiResult set_reasons(PcConfig& config, uint32_t device, size_t count, const uint32_t* indexes) {
  uint64_t reasons = 0;
  for (size_t i = 0; i < count; ++i) {
    if (indexes == nullptr || indexes[i] >= kReasonCount) return CUPTI_ERROR_INVALID_OPERATION;
    reasons |= uint64_t{1} << stall_index(indexes[i], device);
  }
  config.reasons = reasons;
  return CUPTI_SUCCESS;
}

CUptiResult set_buffer(PcConfig& config, void* buffer) {
  if (buffer == nullptr) return CUPTI_ERROR_INVALID_OPERATION;
  config.data_buffer = buffer;
  return CUPTI_SUCCESS;
}

CUptiResult set_one(PcSampler& sampler, CUpti_PCSamplingConfigurationInfo& info) {
  if (const uint32_t code = driver_interface()->failure(Key::kPcAttributeFail, 0,
                                                        static_cast<uint32_t>(info.attributeType)))
    return static_cast<CUptiResult>(code);
  PcConfig& config = sampler.config;
  const auto& data = info.attributeData;
  switch (info.attributeType) {
    case CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_SAMPLING_PERIOD:
      if (data.samplingPeriodData.samplingPeriod < 5 || data.samplingPeriodData.samplingPeriod > 31)
        return CUPTI_ERROR_INVALID_OPERATION;
      config.period = data.samplingPeriodData.samplingPeriod;
      config.period_set = true;
      return CUPTI_SUCCESS;
    case CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_STALL_REASON:
      return set_reasons(config, sampler.device(), data.stallReasonData.stallReasonCount,
                         data.stallReasonData.pStallReasonIndex);
    case CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_SCRATCH_BUFFER_SIZE:
      config.scratch_bytes = data.scratchBufferSizeData.scratchBufferSize;
      return CUPTI_SUCCESS;
    case CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_HARDWARE_BUFFER_SIZE:
      config.hardware_bytes = data.hardwareBufferSizeData.hardwareBufferSize;
      config.hardware_buffer_set = true;
      return CUPTI_SUCCESS;
    case CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_COLLECTION_MODE:
      if (data.collectionModeData.collectionMode < 1 || data.collectionModeData.collectionMode > 2)
        return CUPTI_ERROR_INVALID_OPERATION;
      config.mode = data.collectionModeData.collectionMode;
      return CUPTI_SUCCESS;
    case CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_ENABLE_START_STOP_CONTROL:
      config.start_stop = data.enableStartStopControlData.enableStartStopControl != 0;
      return CUPTI_SUCCESS;
    case CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_OUTPUT_DATA_FORMAT:
      return data.outputDataFormatData.outputDataFormat ==
                     CUPTI_PC_SAMPLING_OUTPUT_DATA_FORMAT_PARSED
                 ? CUPTI_SUCCESS
                 : CUPTI_ERROR_INVALID_OPERATION;
    case CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_SAMPLING_DATA_BUFFER:
      return set_buffer(config, data.samplingDataBufferData.samplingDataBuffer);
    case CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_WORKER_THREAD_PERIODIC_SLEEP_SPAN:
      if (api_version() < 19) return CUPTI_ERROR_INVALID_PARAMETER;
      config.sleep_ms = data.workerThreadPeriodicSleepSpanData.workerThreadPeriodicSleepSpan;
      return CUPTI_SUCCESS;
    default:
      return CUPTI_ERROR_INVALID_PARAMETER;
  }
}

CUptiResult get_one(const PcConfig& config, CUpti_PCSamplingConfigurationInfo& info) {
  auto& data = info.attributeData;
  switch (info.attributeType) {
    case CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_SAMPLING_PERIOD:
      data.samplingPeriodData.samplingPeriod = config.period;
      return CUPTI_SUCCESS;
    case CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_SCRATCH_BUFFER_SIZE:
      data.scratchBufferSizeData.scratchBufferSize = config.scratch_bytes;
      return CUPTI_SUCCESS;
    case CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_HARDWARE_BUFFER_SIZE:
      data.hardwareBufferSizeData.hardwareBufferSize = config.hardware_bytes;
      return CUPTI_SUCCESS;
    case CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_COLLECTION_MODE:
      data.collectionModeData.collectionMode =
          static_cast<CUpti_PCSamplingCollectionMode>(config.mode);
      return CUPTI_SUCCESS;
    case CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_ENABLE_START_STOP_CONTROL:
      data.enableStartStopControlData.enableStartStopControl = config.start_stop ? 1 : 0;
      return CUPTI_SUCCESS;
    case CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_WORKER_THREAD_PERIODIC_SLEEP_SPAN:
      data.workerThreadPeriodicSleepSpanData.workerThreadPeriodicSleepSpan = config.sleep_ms;
      return CUPTI_SUCCESS;
    default:
      return CUPTI_ERROR_INVALID_PARAMETER;
  }
}

/// The client's records must have this version's size and room for every reason.
bool right_records(const uint8_t* records, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    CUpti_PCSamplingPCData record{};
    memcpy(&record, records + i * stride(), kOldStride);
    const bool right = record.size == stride() || (stride() == 64 && record.size == 60);
    if (right && record.stallReason != nullptr) continue;
    driver_interface()->violation(
        "pc-records",
        "record %zu of GetData has size %zu and reasons at %p; this CUPTI "
        "works on %zu bytes",
        i, record.size, static_cast<void*>(record.stallReason), stride());
    return false;
  }
  return true;
}

void count_drain() {
  ++pc_totals().drains;
  const Inside inside = driver_interface()->thread().inside;
  if (inside == Inside::kNothing && driver_interface()->launching())
    ++pc_totals().drains_beside_launches;
}

/// True where this drain is the one that finds the hardware buffer full.
bool runs_over(PcSampler& sampler) {
  Interface* driver = driver_interface();
  if (driver->setting(Key::kPcOom) != 0) return true;
  if (blackwell() && sampler.config.hardware_buffer_set) return true;
  const uint64_t at = driver->setting(Key::kPcOomAt);
  return at != 0 && pc_totals().drains == at;
}

CUptiResult fill(PcSampler& sampler, CUpti_PCSamplingData& data) {
  auto* records = reinterpret_cast<uint8_t*>(data.pPcData);
  const size_t fits = records == nullptr ? 0 : data.collectNumPcs;
  if (!right_records(records, std::min(fits, sampler.ready.size())))
    return CUPTI_ERROR_INVALID_PARAMETER;
  data.totalSamples = sampler.total_samples;
  data.droppedSamples = sampler.dropped_samples;
  if (data.size >= 72) data.nonUsrKernelsTotalSamples = sampler.non_user_samples;
  sampler.total_samples = sampler.dropped_samples = sampler.non_user_samples = 0;
  data.rangeId = sampler.range;
  data.totalNumPcs = sampler.take(records, stride(), fits);
  data.remainingNumPcs = sampler.ready.size();
  return CUPTI_SUCCESS;
}

}  // namespace

FAKE_EXPORT CUptiResult cuptiPCSamplingEnable(CUpti_PCSamplingEnableParams* params) {
  Interface* driver = driver_interface();
  if (driver == nullptr) return fail(CUPTI_ERROR_UNKNOWN);
  Entry entry("cuptiPCSamplingEnable");
  check_place("cuptiPCSamplingEnable", Inside::kContextCreated);
  const Switching switching;
  const auto bad = refused(params, CUpti_PCSamplingEnableParamsSize, kEnable);
  if (bad != CUPTI_SUCCESS) return fail(bad);
  const uint64_t kernels = uint64_t{1} << CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  if (api_version() < kBothKinds && (cupti().kinds.load() & kernels) != 0)
    return fail(CUPTI_ERROR_NOT_COMPATIBLE);
  sleep_ms(driver->setting(Key::kPcEnableMs));
  std::lock_guard lock(pc_mutex());
  PcSampler& sampler = pc_sampler(params->ctx);
  if (sampler.enabled || other_on_device(sampler) != nullptr)
    return fail(CUPTI_ERROR_INVALID_OPERATION);
  sampler.enable(driver->now());
  cupti().pc_enabled.fetch_add(1);
  ++pc_totals().enables;
  return CUPTI_SUCCESS;
}

FAKE_EXPORT CUptiResult cuptiPCSamplingDisable(CUpti_PCSamplingDisableParams* params) {
  if (driver_interface() == nullptr) return fail(CUPTI_ERROR_UNKNOWN);
  Entry entry("cuptiPCSamplingDisable");
  check_place("cuptiPCSamplingDisable");
  if (params != nullptr) check_owner("cuptiPCSamplingDisable", params->ctx);
  const Switching switching;
  const auto bad = refused(params, CUpti_PCSamplingDisableParamsSize, kDisable);
  if (bad != CUPTI_SUCCESS) return fail(bad);
  std::lock_guard lock(pc_mutex());
  PcSampler* sampler = find_pc_sampler(params->ctx);
  if (sampler == nullptr || !sampler->enabled) return fail(CUPTI_ERROR_INVALID_OPERATION);
  const bool continuous = sampler->config.mode == CUPTI_PC_SAMPLING_COLLECTION_MODE_CONTINUOUS;
  if (continuous && sampler->active() && sampler->running && !sampler->stop_tried) {
    driver_interface()->violation("pc-disable-running",
                                  "Disable while sampling: an MMU fault may end the program");
  }
  sampler->disable();
  cupti().pc_enabled.fetch_sub(1);
  ++pc_totals().disables;
  return CUPTI_SUCCESS;
}

FAKE_EXPORT CUptiResult cuptiPCSamplingStart(CUpti_PCSamplingStartParams* params) {
  if (driver_interface() == nullptr) return fail(CUPTI_ERROR_UNKNOWN);
  Entry entry("cuptiPCSamplingStart");
  check_place("cuptiPCSamplingStart", Inside::kContextCreated);
  const Switching switching;
  const auto bad = refused(params, CUpti_PCSamplingStartParamsSize, kStart);
  if (bad == CUPTI_ERROR_HARDWARE_BUSY) cupti().deaf.store(true);
  if (bad != CUPTI_SUCCESS) return fail(bad);
  std::lock_guard lock(pc_mutex());
  PcSampler* sampler = find_pc_sampler(params->ctx);
  if (sampler == nullptr || !sampler->enabled || !sampler->config.start_stop || sampler->started)
    return fail(CUPTI_ERROR_INVALID_OPERATION);
  if (!sampler->take_gpu()) return fail(CUPTI_ERROR_HARDWARE_BUSY);
  sampler->start(driver_interface()->now());
  ++pc_totals().starts;
  return CUPTI_SUCCESS;
}

FAKE_EXPORT CUptiResult cuptiPCSamplingStop(CUpti_PCSamplingStopParams* params) {
  if (driver_interface() == nullptr) return fail(CUPTI_ERROR_UNKNOWN);
  Entry entry("cuptiPCSamplingStop");
  // In a launch's ENTER too: the last moment before a kernel that must not be serialized.
  check_place("cuptiPCSamplingStop", Inside::kLaunchEnter);
  if (params != nullptr) check_owner("cuptiPCSamplingStop", params->ctx, Inside::kLaunchEnter);
  const auto bad = refused(params, CUpti_PCSamplingStopParamsSize, kStop);
  if (PcSampler* asked = params == nullptr ? nullptr : find_pc_sampler(params->ctx))
    asked->stop_tried = true;
  if (bad != CUPTI_SUCCESS) return fail(bad);
  sleep_ms(driver_interface()->setting(Key::kPcStopMs));
  std::lock_guard lock(pc_mutex());
  PcSampler* sampler = find_pc_sampler(params->ctx);
  if (sampler == nullptr || !sampler->started) return fail(CUPTI_ERROR_INVALID_OPERATION);
  sampler->stop(driver_interface()->now());
  ++pc_totals().stops;
  return CUPTI_SUCCESS;
}

FAKE_EXPORT CUptiResult cuptiPCSamplingGetData(CUpti_PCSamplingGetDataParams* params) {
  Interface* driver = driver_interface();
  if (driver == nullptr) return fail(CUPTI_ERROR_UNKNOWN);
  Entry entry("cuptiPCSamplingGetData");
  const auto bad = refused(params, CUpti_PCSamplingGetDataParamsSize, kGetData);
  if (bad != CUPTI_SUCCESS) return fail(bad);
  auto* data = static_cast<CUpti_PCSamplingData*>(params->pcSamplingData);
  if (data == nullptr || data->size > own_data_size() || data->size < 64)
    return fail(CUPTI_ERROR_INVALID_PARAMETER);
  std::lock_guard lock(pc_mutex());
  count_drain();
  PcSampler* sampler = find_pc_sampler(params->ctx);
  if (sampler == nullptr || !sampler->enabled) return fail(CUPTI_ERROR_INVALID_OPERATION);
  if (data == sampler->config.data_buffer)
    driver->violation("pc-buffer", "GetData into the buffer that CUPTI was given to fill itself");
  if (sampler->config.data_buffer == nullptr)
    driver->violation("pc-no-buffer", "GetData before a buffer was registered: CUPTI crashes");
  data->totalSamples = data->droppedSamples = 0;
  data->totalNumPcs = data->remainingNumPcs = 0;
  if (data->size > 72) data->hardwareBufferFull = 0;
  // In a module's or context's last callback everything that ran has been waited for.
  sampler->decode(driver->now(), driver->thread().inside == Inside::kResource);
  if (!sampler->wedged && runs_over(*sampler)) sampler->overflow();
  if (sampler->wedged) {
    if (data->size > 72) data->hardwareBufferFull = 1;
    return fail(CUPTI_ERROR_OUT_OF_MEMORY);
  }
  const CUptiResult filled = fill(*sampler, *data);
  return filled == CUPTI_SUCCESS ? filled : fail(filled);
}

FAKE_EXPORT CUptiResult
cuptiPCSamplingSetConfigurationAttribute(CUpti_PCSamplingConfigurationInfoParams* params) {
  if (driver_interface() == nullptr) return fail(CUPTI_ERROR_UNKNOWN);
  Entry entry("cuptiPCSamplingSetConfigurationAttribute");
  const auto bad = refused(params, CUpti_PCSamplingConfigurationInfoParamsSize, kSetConfiguration);
  if (bad != CUPTI_SUCCESS) return fail(bad);
  std::lock_guard lock(pc_mutex());
  PcSampler* sampler = find_pc_sampler(params->ctx);
  if (sampler == nullptr || !sampler->enabled) return fail(CUPTI_ERROR_INVALID_OPERATION);
  for (size_t i = 0; i < params->numAttributes; ++i) {
    CUpti_PCSamplingConfigurationInfo& info = params->pPCSamplingConfigurationInfo[i];
    info.attributeStatus = set_one(*sampler, info);
  }
  sampler->configured(driver_interface()->now());
  return CUPTI_SUCCESS;  // what a single attribute came to is only in its status
}

FAKE_EXPORT CUptiResult
cuptiPCSamplingGetConfigurationAttribute(CUpti_PCSamplingConfigurationInfoParams* params) {
  if (driver_interface() == nullptr) return fail(CUPTI_ERROR_UNKNOWN);
  Entry entry("cuptiPCSamplingGetConfigurationAttribute");
  const auto bad = refused(params, CUpti_PCSamplingConfigurationInfoParamsSize, kGetConfiguration);
  if (bad != CUPTI_SUCCESS) return fail(bad);
  std::lock_guard lock(pc_mutex());
  const PcSampler* sampler = find_pc_sampler(params->ctx);
  if (sampler == nullptr || !sampler->enabled) return fail(CUPTI_ERROR_INVALID_OPERATION);
  for (size_t i = 0; i < params->numAttributes; ++i) {
    CUpti_PCSamplingConfigurationInfo& info = params->pPCSamplingConfigurationInfo[i];
    info.attributeStatus = get_one(sampler->config, info);
  }
  return CUPTI_SUCCESS;
}

FAKE_EXPORT CUptiResult
cuptiPCSamplingGetNumStallReasons(CUpti_PCSamplingGetNumStallReasonsParams* params) {
  if (driver_interface() == nullptr) return fail(CUPTI_ERROR_UNKNOWN);
  Entry entry("cuptiPCSamplingGetNumStallReasons");
  const auto bad = refused(params, CUpti_PCSamplingGetNumStallReasonsParamsSize, kGetReasons);
  if (bad != CUPTI_SUCCESS) return fail(bad);
  *params->numStallReasons =
      driver_interface()->setting(Key::kPcNoPerfworks) != 0 ? 0 : kReasonCount;
  return CUPTI_SUCCESS;
}

FAKE_EXPORT CUptiResult
cuptiPCSamplingGetStallReasons(CUpti_PCSamplingGetStallReasonsParams* params) {
  if (driver_interface() == nullptr) return fail(CUPTI_ERROR_UNKNOWN);
  Entry entry("cuptiPCSamplingGetStallReasons");
  const auto bad = refused(params, CUpti_PCSamplingGetStallReasonsParamsSize, kGetReasons);
  if (bad != CUPTI_SUCCESS) return fail(bad);
  const uint32_t device = driver_interface()->device_id(params->ctx);
  for (uint32_t i = 0; i < params->numStallReasons && i < kReasonCount; ++i) {
    const uint32_t place = stall_index(i, device);  // its own inverse
    char* const name = params->stallReasons[i];
    params->stallReasonIndex[i] = i;
    if (place == kSampleCount) {
      snprintf(name, CUPTI_STALL_REASON_STRING_SIZE, "smsp__pcsamp_sample_count");
    } else if (place == kDataDropped) {
      snprintf(name, CUPTI_STALL_REASON_STRING_SIZE, "smsp__pcsamp_samples_data_dropped");
    } else {
      snprintf(name, CUPTI_STALL_REASON_STRING_SIZE, "smsp__pcsamp_warps_issue_stalled_%s%s",
               kStalls[(place - 2) / 2], place % 2 == 0 ? "" : "_not_issued");
    }
  }
  return CUPTI_SUCCESS;
}

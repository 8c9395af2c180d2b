// SPDX-License-Identifier: Apache-2.0
#include "shim/cupti/pc_context.h"

#include <cstring>

#include "shim/core/clock.h"
#include "shim/core/correlation.h"
#include "shim/core/log.h"
#include "shim/core/metadata.h"
#include "shim/core/name_table.h"
#include "shim/core/status.h"
#include "shim/cupti/arming.h"
#include "shim/cupti/name_cache.h"

namespace gpuprof::cupti {
namespace {

/// GetData calls of one drain: 64 times 2,048 instructions are more than any program has hot.
constexpr uint32_t kMostCalls = 64;
/// Of window_v1; 0 is none. Guarded by the Guard.
constinit uint64_t next_window_id = 1;
/// Room for the names of a device's stall reasons. Guarded by the Guard.
constinit char stall_names[PcBuffers::kMaxStalls][CUPTI_STALL_REASON_STRING_SIZE]{};

const char* name_of(CUpti_PCSamplingConfigurationAttributeType attribute) noexcept {
  switch (attribute) {
    case CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_COLLECTION_MODE:
      return "setting the collection mode";
    case CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_SAMPLING_DATA_BUFFER:
      return "setting the data buffer";
    case CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_SAMPLING_PERIOD:
      return "setting the sampling period";
    case CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_HARDWARE_BUFFER_SIZE:
      return "setting the hardware buffer's size";
    case CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_ENABLE_START_STOP_CONTROL:
      return "setting the start/stop control";
    default:
      return "configuring PC sampling";
  }
}

class Attributes {
 public:
  CUpti_PCSamplingConfigurationInfo& add(CUpti_PCSamplingConfigurationAttributeType type) noexcept {
    CUpti_PCSamplingConfigurationInfo& info = infos_[count_++];
    info.attributeType = type;
    return info;
  }
  CUpti_PCSamplingConfigurationInfo* data() noexcept { return infos_; }
  [[nodiscard]] size_t count() const noexcept { return count_; }

 private:
  CUpti_PCSamplingConfigurationInfo infos_[5] = {};
  size_t count_ = 0;
};

}  // namespace

// --- on ------------------------------------------------------------------------------------------

bool PcContext::enable(const Guard& guard, CUcontext handle, uint32_t id, uint32_t device,
                       uint32_t version, const PcConfig& config, const PcSurroundings& around,
                       PcRefusal* refusal) noexcept {
  handle_ = handle;
  id_ = id;
  device_ = device;
  version_ = version;
  config_ = config;
  const char* step = "cuptiPCSamplingEnable";
  CUptiResult result = guard.pc_enable(handle);
  if (result == CUPTI_SUCCESS) {
    result = configure(guard, version, around, &step);
    if (result != CUPTI_SUCCESS && arming().phase() != Phase::kInert) {
      (void)guard.pc_disable(handle);
    }
  }
  if (result == CUPTI_SUCCESS && config_.tier == GPUPROF_TIER_CONTINUOUS) {
    step = "cuptiPCSamplingStart";
    result = start(guard);
    refusal->deaf = result != CUPTI_SUCCESS;
  }
  if (result != CUPTI_SUCCESS) {
    explain(step, result, guard.describe(result), around, refusal);
    return false;
  }
  on_ = true;
  disables_failed_ = 0;
  shim::count_pc(GPUPROF_PC_COUNT_ENABLES);
  shim::publish_sampling_period(device_, period_);
  return true;
}

CUptiResult PcContext::configure(const Guard& guard, uint32_t version, const PcSurroundings& around,
                                 const char** step) noexcept {
  *step = "reading the stall reasons";
  CUptiResult result = read_stalls(guard, version);
  if (result != CUPTI_SUCCESS) return result;
  result = set_attributes(guard, around.compute_major == kOwnDefaultsMajor, step);
  if (result != CUPTI_SUCCESS) return result;
  *step = "reading the sampling period";
  return read_period(guard);
}

CUptiResult PcContext::read_stalls(const Guard& guard, uint32_t version) noexcept {
  size_t count = 0;
  CUptiResult result = guard.pc_stall_count(handle_, &count);
  if (result != CUPTI_SUCCESS) return result;
  if (count == 0 || count > PcBuffers::kMaxStalls) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  uint32_t indices[PcBuffers::kMaxStalls] = {};
  char* names[PcBuffers::kMaxStalls];
  for (size_t i = 0; i < count; ++i) {
    stall_names[i][0] = '\0';
    names[i] = stall_names[i];
  }
  result = guard.pc_stall_reasons(handle_, count, indices, names);
  if (result != CUPTI_SUCCESS) return result;
  memset(classes_, 0, sizeof classes_);
  for (size_t i = 0; i < count; ++i) {
    char* name = stall_names[i];
    name[CUPTI_STALL_REASON_STRING_SIZE - 1] = '\0';
    if (indices[i] < PcBuffers::kMaxStalls) classes_[indices[i]] = stall_class(name);
    (void)shim::names().put(GPUPROF_NAME_STALL, uint64_t{device_} << 32 | indices[i], name,
                            strlen(name));
  }
  buffers_.lay_out(version, static_cast<uint32_t>(count));
  return CUPTI_SUCCESS;
}

CUptiResult PcContext::set_attributes(const Guard& guard, bool own_defaults,
                                      const char** step) noexcept {
  Attributes attributes;
  const bool serialized = config_.tier == GPUPROF_TIER_SERIALIZED;
  attributes.add(CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_COLLECTION_MODE)
      .attributeData.collectionModeData.collectionMode =
      serialized ? CUPTI_PC_SAMPLING_COLLECTION_MODE_KERNEL_SERIALIZED
                 : CUPTI_PC_SAMPLING_COLLECTION_MODE_CONTINUOUS;
  attributes.add(CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_SAMPLING_DATA_BUFFER)
      .attributeData.samplingDataBufferData.samplingDataBuffer = &buffers_.registered();
  if (!own_defaults || config_.period != 0) {
    attributes.add(CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_SAMPLING_PERIOD)
        .attributeData.samplingPeriodData.samplingPeriod = config_.period != 0 ? config_.period
                                                           : serialized        ? kSerializedPeriod
                                                                               : kContinuousPeriod;
  }
  if (!own_defaults) {
    attributes.add(CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_HARDWARE_BUFFER_SIZE)
        .attributeData.hardwareBufferSizeData.hardwareBufferSize = kHardwareBufferBytes;
  }
  attributes.add(CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_ENABLE_START_STOP_CONTROL)
      .attributeData.enableStartStopControlData.enableStartStopControl = 1;
  const CUptiResult result =
      guard.pc_set_attributes(handle_, attributes.data(), attributes.count());
  // Each has an answer of its own: a refused collection mode would be silent.
  for (size_t i = 0; i < attributes.count(); ++i) {
    const CUpti_PCSamplingConfigurationInfo& info = attributes.data()[i];
    if (info.attributeStatus == CUPTI_SUCCESS) continue;
    *step = name_of(info.attributeType);
    return info.attributeStatus;
  }
  *step = "configuring PC sampling";
  return result;
}

CUptiResult PcContext::read_period(const Guard& guard) noexcept {
  Attributes attributes;
  attributes.add(CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_SAMPLING_PERIOD);
  const CUptiResult result =
      guard.pc_get_attributes(handle_, attributes.data(), attributes.count());
  if (result != CUPTI_SUCCESS) return result;
  const CUpti_PCSamplingConfigurationInfo& info = attributes.data()[0];
  period_ = info.attributeData.samplingPeriodData.samplingPeriod;
  return info.attributeStatus;
}

// --- windows -------------------------------------------------------------------------------------

void PcContext::publish_window(uint32_t event, uint64_t id, uint64_t now_ns) noexcept {
  gpuprof_window_v1 window = {};
  window.window_id = id;
  window.time_ns = now_ns;
  window.event = event;
  window.mode = config_.tier == GPUPROF_TIER_SERIALIZED ? 2 : 1;
  window.device_id = device_;
  window.context_id = id_;
  window.period = period_;
  shim::publish_window(window);
}

void PcContext::open_window() noexcept {
  window_id_ = last_window_id_ = next_window_id++;
  shim::count_pc(GPUPROF_PC_COUNT_WINDOWS);
  publish_window(GPUPROF_WINDOW_OPEN, window_id_, shim::monotonic_ns());
}

void PcContext::close_window(uint64_t now_ns) noexcept {
  if (window_id_ == 0) return;
  publish_window(GPUPROF_WINDOW_CLOSE, window_id_, now_ns);
  window_id_ = 0;
}

CUptiResult PcContext::start(const Guard& guard) noexcept {
  const CUptiResult result = guard.pc_start(handle_);
  if (result == CUPTI_SUCCESS) open_window();
  return result;
}

Drain PcContext::stop(const Guard& guard, bool fetch, CUptiResult* result) noexcept {
  *result = guard.pc_stop(handle_);
  const uint64_t stopped_ns = shim::monotonic_ns();
  const Drain drained = fetch ? drain(guard) : Drain::kOk;
  if (*result == CUPTI_SUCCESS) close_window(stopped_ns);  // after its samples
  return drained;
}

// --- records -------------------------------------------------------------------------------------

void PcContext::emit(shim::PcBatch& batch, const SamplingData& data) noexcept {
  if (data.dropped_samples != 0) shim::count_drop(GPUPROF_DROP_PC_DROPPED, data.dropped_samples);
  if (data.non_user_samples != 0) shim::count_drop(GPUPROF_DROP_NON_USER, data.non_user_samples);
  NameCache names;
  bool fresh;
  const size_t count =
      data.record_count < PcBuffers::kRecords ? data.record_count : PcBuffers::kRecords;
  for (size_t i = 0; i < count; ++i) {
    const PcRecord& record = buffers_.record(data, i);
    gpuprof_pc_sample_v1 sample = {};
    sample.cubin_key = record.cubin_key;
    sample.function_name_id = names.id_of(record.function_name, &fresh);
    sample.window_id = last_window_id_;
    sample.pc_offset = static_cast<uint32_t>(record.pc_offset);
    sample.device_id = device_;
    sample.context_id = id_;
    if (config_.tier == GPUPROF_TIER_SERIALIZED && version_ >= kPcCorrelationVersion) {
      const shim::WideCorrelation wide = shim::correlations().execution(record.correlation);
      sample.correlation = wide.id;
      sample.epoch = wide.epoch;
    }
    for (size_t k = 0; k < buffers_.stalls_of(record); ++k) {
      const StallCount& stall = record.stalls[k];
      if (stall.samples == 0) continue;
      sample.stall_index = stall.index;
      sample.samples = stall.samples;
      const bool counted =
          stall.index < PcBuffers::kMaxStalls && classes_[stall.index] == StallClass::kStalled;
      if (counted && sample.function_name_id == 0) {
        shim::count_drop(GPUPROF_DROP_PC_NO_NAME, stall.samples);
      }
      batch.add(sample, counted);
    }
  }
}

Drain PcContext::drain(const Guard& guard) noexcept {
  shim::PcBatch batch;
  SamplingData& data = buffers_.drained();
  for (uint32_t calls = 0; calls < kMostCalls; ++calls) {
    data.record_count = data.remaining = 0;
    data.total_samples = data.dropped_samples = data.non_user_samples = 0;
    data.hardware_buffer_full = 0;
    const CUptiResult result = guard.pc_get_data(handle_, &data);
    if (data.hardware_buffer_full != 0) shim::count_drop(GPUPROF_DROP_HW_BUFFER_FULL);
    if (result != CUPTI_SUCCESS) {
      shim::count_drop(GPUPROF_DROP_PC_LOST_DRAINS);
      shim::log_line("cuptiPCSamplingGetData: %d (%s)", result, guard.describe(result));
      return result == CUPTI_ERROR_OUT_OF_MEMORY ? Drain::kOutOfMemory : Drain::kFailed;
    }
    shim::count_pc(GPUPROF_PC_COUNT_DRAINS);
    emit(batch, data);
    // What CUPTI has put into the registered buffer comes out of GetData too, first.
    const bool more = data.remaining != 0 || buffers_.registered().record_count != 0;
    if (!more || data.record_count == 0) break;
  }
  return Drain::kOk;
}

void PcContext::disable(const Guard& guard, bool drain_first) noexcept {
  if (!on_) return;
  if (window_open()) {
    CUptiResult stopped = CUPTI_SUCCESS;
    (void)stop(guard, drain_first || serializing(), &stopped);
    if (stopped != CUPTI_SUCCESS) {
      shim::log_line("cuptiPCSamplingStop: %d (%s)", stopped, guard.describe(stopped));
    }
  } else if (drain_first) {
    (void)drain(guard);
  }
  // The second answer counts: what was in the way of the first has been fetched then.
  CUptiResult result = try_disable(guard);
  if (result != CUPTI_SUCCESS && arming().phase() != Phase::kInert) {
    (void)drain(guard);
    result = try_disable(guard);
  }
  shim::count_pc(GPUPROF_PC_COUNT_DISABLES);
  forget();
  stuck_ = result != CUPTI_SUCCESS;
}

CUptiResult PcContext::try_disable(const Guard& guard) noexcept {
  SamplingData& registered = buffers_.registered();
  registered.record_count = 0;
  registered.dropped_samples = registered.non_user_samples = 0;
  const CUptiResult result = guard.pc_disable(handle_);
  if (result != CUPTI_SUCCESS) {
    ++disables_failed_;
    shim::log_line("cuptiPCSamplingDisable: %d (%s)", result, guard.describe(result));
  }
  if (registered.record_count != 0) {
    shim::PcBatch batch;
    emit(batch, registered);
  }
  return result;
}

void PcContext::unstick(const Guard& guard) noexcept {
  if (!stuck_ || disables_failed_ >= kMostDisables) return;
  stuck_ = try_disable(guard) != CUPTI_SUCCESS;
}

void PcContext::forget() noexcept {
  stuck_ = false;
  if (!on_) return;
  close_window(shim::monotonic_ns());
  on_ = false;
  shim::publish_sampling_period(device_, 0);
}

}  // namespace gpuprof::cupti

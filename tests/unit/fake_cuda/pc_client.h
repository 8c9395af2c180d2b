// SPDX-License-Identifier: Apache-2.0
// PC sampling as a well-behaved client does it: everything in launch-EXIT callbacks.
#pragma once

#include <unistd.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/fake_cuda/stalls.h"
#include "tests/unit/fake_cuda/client.h"

namespace fakecuda {

struct PcRecord {
  uint64_t crc, offset;
  uint32_t function_index, correlation;
  std::string function;
  std::map<std::string, uint32_t> stalls;  // by short name; "" is sample_count
};

/// The lists and buffers of one context.
class PcClient {
 public:
  explicit PcClient(size_t pcs = 64, size_t stride = 64, size_t data_size = 80)
      : stride_(stride), records_(pcs * stride), reasons_(pcs * kReasonCount) {
    cuDevicePrimaryCtxRetain(&context, 0);
    own.size = data_size;
    data.size = data_size;
    data.collectNumPcs = pcs;
    data.pPcData = reinterpret_cast<CUpti_PCSamplingPCData*>(records_.data());
    for (size_t i = 0; i < pcs; ++i) {
      CUpti_PCSamplingPCData record{};
      record.size = stride;
      record.stallReason = &reasons_[i * kReasonCount];
      memcpy(&records_[i * stride], &record, stride);
    }
  }

  CUptiResult enable() {
    CUpti_PCSamplingEnableParams p{CUpti_PCSamplingEnableParamsSize, nullptr, context};
    const CUptiResult result = cuptiPCSamplingEnable(&p);
    if (result == CUPTI_SUCCESS && registers) register_buffer(&own);
    return result;
  }
  void register_buffer(CUpti_PCSamplingData* buffer) {
    CUpti_PCSamplingConfigurationInfo info{};
    info.attributeType = CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_SAMPLING_DATA_BUFFER;
    info.attributeData.samplingDataBufferData.samplingDataBuffer = buffer;
    configure({info});
  }
  CUptiResult disable() {
    CUpti_PCSamplingDisableParams p{CUpti_PCSamplingDisableParamsSize, nullptr, context};
    return cuptiPCSamplingDisable(&p);
  }
  CUptiResult begin() {
    CUpti_PCSamplingStartParams p{CUpti_PCSamplingStartParamsSize, nullptr, context};
    return cuptiPCSamplingStart(&p);
  }
  CUptiResult stop() {
    CUpti_PCSamplingStopParams p{CUpti_PCSamplingStopParamsSize, nullptr, context};
    return cuptiPCSamplingStop(&p);
  }

  CUptiResult configure(std::vector<CUpti_PCSamplingConfigurationInfo> infos) {
    CUpti_PCSamplingConfigurationInfoParams p{CUpti_PCSamplingConfigurationInfoParamsSize, nullptr,
                                              context, infos.size(), infos.data()};
    const CUptiResult result = cuptiPCSamplingSetConfigurationAttribute(&p);
    status.clear();
    for (const auto& info : infos) status.push_back(info.attributeStatus);
    return result;
  }

  /// Period, mode (1 continuous, 2 serialized), start/stop control.
  CUptiResult configure(uint32_t period, uint32_t mode, bool control) {
    std::vector<CUpti_PCSamplingConfigurationInfo> infos(3);
    infos[0].attributeType = CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_SAMPLING_PERIOD;
    infos[0].attributeData.samplingPeriodData.samplingPeriod = period;
    infos[1].attributeType = CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_COLLECTION_MODE;
    infos[1].attributeData.collectionModeData.collectionMode =
        static_cast<CUpti_PCSamplingCollectionMode>(mode);
    infos[2].attributeType = CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_ENABLE_START_STOP_CONTROL;
    infos[2].attributeData.enableStartStopControlData.enableStartStopControl = control ? 1 : 0;
    return configure(infos);
  }

  uint32_t period() {
    CUpti_PCSamplingConfigurationInfo info{};
    info.attributeType = CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_SAMPLING_PERIOD;
    CUpti_PCSamplingConfigurationInfoParams p{CUpti_PCSamplingConfigurationInfoParamsSize, nullptr,
                                              context, 1, &info};
    REQUIRE(cuptiPCSamplingGetConfigurationAttribute(&p) == CUPTI_SUCCESS);
    return info.attributeData.samplingPeriodData.samplingPeriod;
  }

  void read_names() {
    size_t count = 0;
    CUpti_PCSamplingGetNumStallReasonsParams n{CUpti_PCSamplingGetNumStallReasonsParamsSize,
                                               nullptr, context, &count};
    REQUIRE(cuptiPCSamplingGetNumStallReasons(&n) == CUPTI_SUCCESS);
    std::vector<uint32_t> indexes(count);
    std::vector<char> text(count * CUPTI_STALL_REASON_STRING_SIZE);
    std::vector<char*> strings;
    for (size_t i = 0; i < count; ++i) strings.push_back(&text[i * CUPTI_STALL_REASON_STRING_SIZE]);
    CUpti_PCSamplingGetStallReasonsParams r{CUpti_PCSamplingGetStallReasonsParamsSize,
                                            nullptr,
                                            context,
                                            count,
                                            indexes.data(),
                                            strings.data()};
    REQUIRE(cuptiPCSamplingGetStallReasons(&r) == CUPTI_SUCCESS);
    for (size_t i = 0; i < count; ++i) names[indexes[i]] = strings[i];
  }

  /// One GetData; what came is appended to `records`.
  CUptiResult drain() {
    CUpti_PCSamplingGetDataParams p{CUpti_PCSamplingGetDataParamsSize, nullptr, context, &data};
    const CUptiResult result = cuptiPCSamplingGetData(&p);
    if (names.empty()) read_names();
    const std::string prefix = "smsp__pcsamp_warps_issue_stalled_";
    for (size_t i = 0; i < data.totalNumPcs; ++i) {
      CUpti_PCSamplingPCData r{};
      memcpy(&r, &records_[i * stride_], stride_);
      PcRecord got{r.cubinCrc, r.pcOffset, r.functionIndex, r.correlationId, r.functionName, {}};
      for (size_t k = 0; k < r.stallReasonCount; ++k) {
        const std::string& name = names.at(r.stallReason[k].pcSamplingStallReasonIndex);
        const bool stall = name.rfind(prefix, 0) == 0;
        got.stalls[stall ? name.substr(prefix.size()) : ""] += r.stallReason[k].samples;
      }
      records.push_back(got);
    }
    return result;
  }

  [[nodiscard]] uint64_t samples() const {
    uint64_t sum = 0;
    for (const PcRecord& r : records) sum += r.stalls.at("");
    return sum;
  }

  CUcontext context = nullptr;
  CUpti_PCSamplingData data{};
  CUpti_PCSamplingData own{};  // the one that CUPTI is given; it stays empty here
  bool registers = true;
  std::vector<CUptiResult> status;
  std::map<uint32_t, std::string> names;
  std::vector<PcRecord> records;

 private:
  size_t stride_;
  std::vector<uint8_t> records_;
  std::vector<CUpti_PCSamplingStallReason> reasons_;
};

/// A scenario in a process of its own, as a function because commas end a macro's argument.
inline void expect_exit(int status, const char* says, const std::function<void()>& body) {
  const auto scenario = [&] {
    body();
    finish();
  };
  EXPECT_EXIT(scenario(), testing::ExitedWithCode(status), says);
}

/// Runs `body` in the EXIT callback of one launch of `f`, which takes no time on the GPU.
inline void in_launch_exit(CUfunction f, const std::function<void()>& body,
                           CUstream stream = nullptr, uint64_t ns = 0) {
  client().on_callback = [&](CUpti_CallbackDomain, CUpti_CallbackId,
                             const CUpti_CallbackData& call) {
    if (call.callbackSite == CUPTI_API_EXIT) body();
  };
  launch(f, ns, stream);
  client().on_callback = nullptr;
}

}  // namespace fakecuda

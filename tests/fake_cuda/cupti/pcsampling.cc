// SPDX-License-Identifier: Apache-2.0
// PC sampling: the state machine and its rules. It yields no samples yet.
#include <cstdio>

#include "tests/fake_cuda/cupti/state.h"

using namespace fakecuda;

namespace {

constexpr const char* kReasons[] = {"smsp__pcsamp_sample_count",
                                    "smsp__pcsamp_samples_data_dropped",
                                    "smsp__pcsamp_warps_issue_stalled_long_scoreboard",
                                    "smsp__pcsamp_warps_issue_stalled_long_scoreboard_not_issued"};
constexpr size_t kReasonCount = sizeof kReasons / sizeof kReasons[0];

/// On a helper thread while the app launches each of these hung the application for good (H200).
void check_place(const char* name, bool context_created_too) {
  const Inside inside = driver_interface()->thread().inside;
  if (context_created_too && inside == Inside::kContextCreated) return;
  if (!safe_place(false)) {
    driver_interface()->violation("pc-thread",
                                  "%s outside a launch-EXIT callback while the app launches", name);
  }
  if (driver_interface()->thread().capturing) {
    driver_interface()->violation("captured", "%s in a launch whose stream is being captured",
                                  name);
  }
}

}  // namespace

FAKE_EXPORT CUptiResult cuptiPCSamplingEnable(CUpti_PCSamplingEnableParams* params) {
  if (driver_interface() == nullptr) return fail(CUPTI_ERROR_UNKNOWN);
  Entry entry("cuptiPCSamplingEnable");
  check_place("cuptiPCSamplingEnable", true);
  if (params == nullptr || params->ctx == nullptr || cupti().pc_enabled.exchange(true)) {
    return fail(CUPTI_ERROR_INVALID_PARAMETER);
  }
  return CUPTI_SUCCESS;
}

FAKE_EXPORT CUptiResult cuptiPCSamplingDisable(CUpti_PCSamplingDisableParams*) {
  if (driver_interface() == nullptr) return fail(CUPTI_ERROR_UNKNOWN);
  Entry entry("cuptiPCSamplingDisable");
  check_place("cuptiPCSamplingDisable", false);
  cupti().pc_started.store(false);
  return cupti().pc_enabled.exchange(false) ? CUPTI_SUCCESS : fail(CUPTI_ERROR_INVALID_OPERATION);
}

FAKE_EXPORT CUptiResult cuptiPCSamplingStart(CUpti_PCSamplingStartParams*) {
  if (driver_interface() == nullptr) return fail(CUPTI_ERROR_UNKNOWN);
  Entry entry("cuptiPCSamplingStart");
  check_place("cuptiPCSamplingStart", false);
  if (!cupti().pc_enabled.load()) return fail(CUPTI_ERROR_INVALID_OPERATION);
  cupti().pc_started.store(true);
  return CUPTI_SUCCESS;
}

FAKE_EXPORT CUptiResult cuptiPCSamplingStop(CUpti_PCSamplingStopParams*) {
  if (driver_interface() == nullptr) return fail(CUPTI_ERROR_UNKNOWN);
  Entry entry("cuptiPCSamplingStop");
  check_place("cuptiPCSamplingStop", false);
  return cupti().pc_started.exchange(false) ? CUPTI_SUCCESS : fail(CUPTI_ERROR_INVALID_OPERATION);
}

FAKE_EXPORT CUptiResult cuptiPCSamplingGetData(CUpti_PCSamplingGetDataParams* params) {
  if (driver_interface() == nullptr) return fail(CUPTI_ERROR_UNKNOWN);
  Entry entry("cuptiPCSamplingGetData");
  if (!cupti().pc_enabled.load()) return fail(CUPTI_ERROR_INVALID_OPERATION);
  auto* data = static_cast<CUpti_PCSamplingData*>(params->pcSamplingData);
  data->totalSamples = 0;
  data->droppedSamples = 0;
  data->totalNumPcs = 0;
  data->remainingNumPcs = 0;
  return CUPTI_SUCCESS;
}

FAKE_EXPORT CUptiResult
cuptiPCSamplingSetConfigurationAttribute(CUpti_PCSamplingConfigurationInfoParams* params) {
  if (driver_interface() == nullptr) return fail(CUPTI_ERROR_UNKNOWN);
  Entry entry("cuptiPCSamplingSetConfigurationAttribute");
  for (size_t i = 0; i < params->numAttributes; ++i) {
    params->pPCSamplingConfigurationInfo[i].attributeStatus = CUPTI_SUCCESS;
  }
  return CUPTI_SUCCESS;
}

FAKE_EXPORT CUptiResult
cuptiPCSamplingGetNumStallReasons(CUpti_PCSamplingGetNumStallReasonsParams* params) {
  if (driver_interface() == nullptr) return fail(CUPTI_ERROR_UNKNOWN);
  Entry entry("cuptiPCSamplingGetNumStallReasons");
  *params->numStallReasons = kReasonCount;
  return CUPTI_SUCCESS;
}

FAKE_EXPORT CUptiResult
cuptiPCSamplingGetStallReasons(CUpti_PCSamplingGetStallReasonsParams* params) {
  if (driver_interface() == nullptr) return fail(CUPTI_ERROR_UNKNOWN);
  Entry entry("cuptiPCSamplingGetStallReasons");
  for (size_t i = 0; i < params->numStallReasons && i < kReasonCount; ++i) {
    params->stallReasonIndex[i] = static_cast<uint32_t>(i);
    snprintf(params->stallReasons[i], CUPTI_STALL_REASON_STRING_SIZE, "%s", kReasons[i]);
  }
  return CUPTI_SUCCESS;
}

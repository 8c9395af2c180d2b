// SPDX-License-Identifier: Apache-2.0
#include "shim/cupti/pc_records.h"

#include <cstddef>
#include <cstring>

#include "shim/cupti/vendor.h"

namespace gpuprof::cupti {
namespace {

#define SAME(ours, member, theirs, theirs_member) \
  static_assert(offsetof(ours, member) == offsetof(theirs, theirs_member))
SAME(StallCount, index, CUpti_PCSamplingStallReason, pcSamplingStallReasonIndex);
SAME(StallCount, samples, CUpti_PCSamplingStallReason, samples);
static_assert(sizeof(StallCount) == sizeof(CUpti_PCSamplingStallReason));

SAME(PcRecord, size, CUpti_PCSamplingPCData, size);
SAME(PcRecord, cubin_key, CUpti_PCSamplingPCData, cubinCrc);
SAME(PcRecord, pc_offset, CUpti_PCSamplingPCData, pcOffset);
SAME(PcRecord, function_index, CUpti_PCSamplingPCData, functionIndex);
SAME(PcRecord, function_name, CUpti_PCSamplingPCData, functionName);
SAME(PcRecord, stall_count, CUpti_PCSamplingPCData, stallReasonCount);
SAME(PcRecord, stalls, CUpti_PCSamplingPCData, stallReason);
#if GPUPROF_HEADERS_API >= 22
SAME(PcRecord, correlation, CUpti_PCSamplingPCData, correlationId);
#endif
static_assert(sizeof(CUpti_PCSamplingPCData) == pc_record_bytes(GPUPROF_HEADERS_API));
static_assert(sizeof(PcRecord) == 64);

SAME(SamplingData, size, CUpti_PCSamplingData, size);
SAME(SamplingData, capacity, CUpti_PCSamplingData, collectNumPcs);
SAME(SamplingData, total_samples, CUpti_PCSamplingData, totalSamples);
SAME(SamplingData, dropped_samples, CUpti_PCSamplingData, droppedSamples);
SAME(SamplingData, record_count, CUpti_PCSamplingData, totalNumPcs);
SAME(SamplingData, remaining, CUpti_PCSamplingData, remainingNumPcs);
SAME(SamplingData, records, CUpti_PCSamplingData, pPcData);
SAME(SamplingData, non_user_samples, CUpti_PCSamplingData, nonUsrKernelsTotalSamples);
#if GPUPROF_HEADERS_API >= 19
SAME(SamplingData, hardware_buffer_full, CUpti_PCSamplingData, hardwareBufferFull);
#endif
static_assert(sizeof(CUpti_PCSamplingData) == sampling_data_bytes(GPUPROF_HEADERS_API));
static_assert(sizeof(SamplingData) == 80);
#undef SAME

constexpr char kStalledPrefix[] = "smsp__pcsamp_warps_issue_stalled_";
constexpr char kNotIssuedSuffix[] = "_not_issued";

}  // namespace

StallClass stall_class(const char* name) noexcept {
  if (strncmp(name, kStalledPrefix, sizeof kStalledPrefix - 1) != 0) return StallClass::kOther;
  const size_t length = strlen(name);
  constexpr size_t kSuffix = sizeof kNotIssuedSuffix - 1;
  return length > kSuffix && strcmp(name + length - kSuffix, kNotIssuedSuffix) == 0
             ? StallClass::kNotIssued
             : StallClass::kStalled;
}

}  // namespace gpuprof::cupti

// SPDX-License-Identifier: Apache-2.0
// Our own view of CUPTI's PC-sampling data (cupti_pcsampling.h).
//
// Unlike activity records these are an array that the client lays out, each element with a size
// member that tells CUPTI how far it may write. They grew at 12.4 (a PC's record) and at 12.0 (the
// data's head), so the stride and every size are chosen by the version that runs, not by the
// headers. pc_records.cc checks the offsets against the headers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpuprof::cupti {

/// CUpti_PCSamplingStallReason.
struct StallCount {
  uint32_t index;
  uint32_t samples;
};

/// CUpti_PCSamplingPCData: 56 bytes below API 22 (12.4), 64 from there.
struct PcRecord {
  size_t size;
  uint64_t cubin_key;
  uint64_t pc_offset;
  uint32_t function_index;
  uint32_t pad;
  /// CUPTI's memory, shared with activity records: never freed.
  const char* function_name;
  size_t stall_count;
  StallCount* stalls;
  uint32_t correlation;  // from API 22 on; serialized mode only
  uint32_t pad2;
};

/// CUpti_PCSamplingData: 72 bytes below API 19 (12.0), 80 from there.
struct SamplingData {
  size_t size;
  size_t capacity;
  uint64_t total_samples;
  uint64_t dropped_samples;
  size_t record_count;
  size_t remaining;
  uint64_t range_id;
  void* records;
  uint64_t non_user_samples;
  uint8_t hardware_buffer_full;  // from API 19 on
  uint8_t pad[7];
};

/// First version whose PcRecord has a correlation id.
inline constexpr uint32_t kPcCorrelationVersion = 22;

/// Bytes of one PcRecord and of SamplingData, as the version expects them.
constexpr size_t pc_record_bytes(uint32_t version) noexcept {
  return version < kPcCorrelationVersion ? 56 : 64;
}
constexpr size_t sampling_data_bytes(uint32_t version) noexcept { return version < 19 ? 72 : 80; }

/// What the samples of a stall reason mean, by its name.
enum class StallClass : uint8_t {
  kOther,      // sample_count and samples_data_dropped: accounting
  kStalled,    // smsp__pcsamp_warps_issue_stalled_<reason>
  kNotIssued,  // the same with _not_issued: a subset
};
StallClass stall_class(const char* name) noexcept;

}  // namespace gpuprof::cupti

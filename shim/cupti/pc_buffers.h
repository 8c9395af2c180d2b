// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "shim/core/status_code.h"
#include "shim/cupti/pc_records.h"

namespace gpuprof::cupti {

/// The two PC-sampling buffers of one context: the one that is registered in the configuration,
/// which CUPTI fills on its own (in serialized mode, when a module is loaded after another was
/// unloaded, and at Disable), and the one that GetData fills.
///
/// Memory is reserved by create() on the service thread, because callbacks allocate nothing, and
/// never freed: CUPTI may write into the registered one at any time while sampling is enabled.
/// lay_out() writes sizes and pointers, before each enable. Guarded by the Guard after create().
class PcBuffers {
 public:
  static constexpr uint32_t kRecords = 2048;  // more are fetched by further GetData calls
  static constexpr uint32_t kMaxStalls = 64;  // an H200 has 40

  constexpr PcBuffers() = default;

  shim::Status create() noexcept;
  [[nodiscard]] bool exists() const noexcept { return memory_ != nullptr; }
  /// For a libcupti of `version` whose device has `stalls` stall reasons, at most kMaxStalls.
  void lay_out(uint32_t version, uint32_t stalls) noexcept;

  SamplingData& drained() noexcept { return *data(0); }
  SamplingData& registered() noexcept { return *data(1); }
  /// Record `index` of one of the two, below its record_count and kRecords.
  [[nodiscard]] const PcRecord& record(const SamplingData& data, size_t index) const noexcept {
    return *reinterpret_cast<const PcRecord*>(static_cast<const char*>(data.records) +
                                              index * record_bytes_);
  }
  /// Stalls of a record that may be read, whatever CUPTI says.
  [[nodiscard]] size_t stalls_of(const PcRecord& record) const noexcept {
    return record.stall_count < stalls_ ? record.stall_count : stalls_;
  }

 private:
  static constexpr size_t kHeadBytes = 128;
  static constexpr size_t kBufferBytes =
      kHeadBytes + kRecords * (sizeof(PcRecord) + kMaxStalls * sizeof(StallCount));

  SamplingData* data(uint32_t which) noexcept {
    return reinterpret_cast<SamplingData*>(memory_ + which * kBufferBytes);
  }

  char* memory_ = nullptr;
  size_t record_bytes_ = sizeof(PcRecord);
  uint32_t stalls_ = 0;
};

}  // namespace gpuprof::cupti

// SPDX-License-Identifier: Apache-2.0
//
// Accounting: where every execution record of a process went.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "daemon/join/pc_accounting.h"
#include "proto/usdt_abi.h"

namespace gpuprof::join {

// Why an execution has no stack at all, not even an estimated one.
enum class Unmatched : uint8_t {
  kNone = 0,
  kNoSample,        // no launch of its kernel (or graph) was sampled
  kBeforeArm,       // launched before this arm's first observed launch
  kLaunchLost,      // its launch was sampled, and the record or its stack was lost
  kDeviceLaunched,  // launched from the device: there is no host stack
};
inline constexpr size_t kUnmatchedCount = 5;
// "no-sample", "before-arm", "launch-lost", "device-launched"; "" for kNone.
const char* unmatched_name(Unmatched reason);

// Slots for probe::LossReason, which this library does not know.
inline constexpr size_t kLossReasonSlots = kPcLossSlots;

// Counts are execution records, times are GPU nanoseconds. Two identities, checked by check():
//   received = exact + sampled + Σ unattributed + evicted + pending        (records and time)
//   produced = received + Σ lost_shim + Σ lost_ring                        (records)
// `produced` is known once the shim told its final totals (the second identity is skipped before).
// A duplicate is no received record.
struct Accounting {
  uint64_t received = 0;
  uint64_t exact = 0;
  uint64_t sampled = 0;
  std::array<uint64_t, kUnmatchedCount> unattributed{};
  uint64_t evicted = 0;  // refused: the process table was full
  uint64_t pending = 0;  // still waiting for a launch record

  uint64_t received_ns = 0;
  uint64_t exact_ns = 0;
  uint64_t sampled_ns = 0;
  std::array<uint64_t, kUnmatchedCount> unattributed_ns{};
  uint64_t evicted_ns = 0;
  uint64_t pending_ns = 0;

  uint64_t duplicates = 0;  // the same execution twice: suppressed
  // Emitted by the probe exec_v1 while the daemon was attached, by the shim's own count.
  std::optional<uint64_t> emitted;
  // Executions lost before the probe, by enum gpuprof_drop_class (only the classes that are
  // executions: is_execution_loss()).
  std::array<uint64_t, GPUPROF_DROP_CLASS_COUNT> lost_shim{};
  std::array<uint64_t, kLossReasonSlots> lost_ring{};  // by probe::LossReason

  PcAccounting pc;  // with identities of its own, which check() checks too

  // What CUPTI made: emitted plus what the shim lost. Nothing before `emitted` is known.
  [[nodiscard]] std::optional<uint64_t> produced() const;
  // Empty if every identity holds, else one line that names the broken one with its numbers.
  [[nodiscard]] std::string check() const;

  // check() as yes or no; nothing where no identity is broken but `produced` is unknown, so that
  // the second was not checked.
  [[nodiscard]] std::optional<bool> identity_holds() const;

  Accounting& operator+=(const Accounting& other);
};

// True for the drop classes that count execution records which never reached the probe.
bool is_execution_loss(uint32_t drop_class);

}  // namespace gpuprof::join

// SPDX-License-Identifier: Apache-2.0
//
// PcAccounting: where every PC sample of a process went, and every sampling window.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace gpuprof::join {

// How a PC sample found its call path: the values of the label gpu_pc_attrib.
enum class PcAttrib : uint8_t {
  kNone = 0,  // not a PC sample
  kExact,     // by its launch's correlation, whose kernel can run its function: serialized sampling
  kKernel,    // by kernel, device and context, whose executions have one call path
  kKernelAmbiguous,    // likewise, but several call paths, or modules, share it: an estimate
  kKernelMultidevice,  // by kernel only: the device is unknown, or did not run it
  kGraphRefused,       // its correlation is a graph's, N kernels share it: joined as by kernel
  kUnattributed,       // no execution of its kernel in the output window
};
inline constexpr size_t kPcAttribCount = 7;
// "exact", "kernel", "kernel-ambiguous", "kernel-multidevice", "graph-refused", "unattributed"; ""
// for kNone.
const char* pc_attrib_name(PcAttrib attrib);

// What one counter of CUPTI's counts, by its name.
enum class StallKind : uint8_t {
  kUnnamed,    // its name did not arrive: it may count what another counter counts, too
  kStalled,    // smsp__pcsamp_warps_issue_stalled_<reason>: a PC sample each
  kNotIssued,  // ..._not_issued: those of the former at which the scheduler issued nothing
  kOther,      // totals and losses (smsp__pcsamp_sample_count, _samples_data_dropped)
};
struct StallName {
  StallKind kind = StallKind::kUnnamed;
  std::string reason;  // ncu's short name ("wait", "long_scoreboard"); only of the middle two
};
StallName parse_stall_name(const std::string& name);

// Slots for probe::LossReason (see accounting.h).
inline constexpr size_t kPcLossSlots = 8;

// check() holds of a finished window:
//   produced records = records + Σ lost_ring                      (once `emitted` is known)
//   counts  = samples + not_issued + other + unnamed + refused + pending
//   samples = Σ attrib
struct PcAccounting {
  uint64_t records = 0;             // of pc_sample_v1, received
  std::optional<uint64_t> emitted;  // by the shim's own count, since the daemon attached
  std::array<uint64_t, kPcLossSlots> lost_ring{};

  uint64_t counts = 0;      // sum of the records' counts, whatever they count
  uint64_t samples = 0;     // StallKind::kStalled
  uint64_t not_issued = 0;  // a subset of those, not more of them
  uint64_t other = 0;
  uint64_t unnamed = 0;
  uint64_t refused = 0;                           // beyond a bound: of which kind is not known
  uint64_t pending = 0;                           // the window is not finished
  std::array<uint64_t, kPcAttribCount> attrib{};  // of `samples`

  // Empty if every identity holds, else one line that names the broken one with its numbers.
  [[nodiscard]] std::string check() const;
  PcAccounting& operator+=(const PcAccounting& other);
};

// Records of window_v1, since the joiner first saw the process:
//   records = Σ opened + closed + duplicates + refused
//   Σ opened + opens_lost = closed + closes_lost + open
struct WindowCounts {
  uint64_t records = 0;
  std::array<uint64_t, 3> opened{};  // by mode: 1 continuous, 2 serialized
  uint64_t closed = 0;
  uint64_t duplicates = 0;   // told again, as at an attach
  uint64_t refused = 0;      // of contexts beyond a bound
  uint64_t opens_lost = 0;   // a window closed that was never opened
  uint64_t closes_lost = 0;  // a window opened where another one was open
  uint64_t open = 0;         // now

  [[nodiscard]] std::string check() const;
};

}  // namespace gpuprof::join

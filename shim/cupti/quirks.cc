// SPDX-License-Identifier: Apache-2.0
#include "shim/cupti/quirks.h"

namespace gpuprof::cupti {
namespace {

struct Entry {
  uint32_t first;  // versions first..last, inclusive
  uint32_t last;
  bool eager;
  bool no_disarm;
  const char* reason;
};

// Versions that may not be switched on and off while the application runs. 250 arm/disarm cycles in
// launch-exit callbacks ran clean on 26 (12.8), 28 (12.9), 130000 and 130001, and activity toggling
// survived on 18 (11.8), so nothing that was measured is on the list. In versions before 13.0U1
// cuptiActivityDisable(CONCURRENT_KERNEL) "could deadlock" (its release notes, which do not say
// since when): 11.8 and 12.8 to 13.0.1 did not, 12.0 to 12.6 were not measured, and a deadlock
// there would be the application's.
constexpr Entry kEntries[] = {
    {19, 25, false, true, "not measured: stays armed once armed"},
};

}  // namespace

Quirks quirks_of(uint32_t version, uint32_t driver_version) noexcept {
  Quirks quirks;
  quirks.null_buffer_ok = version >= 27;          // 12.9 release notes
  quirks.per_thread_buffers = version >= 130000;  // on by default since 13.0; opt-in since 12.3
  quirks.state_domain = version >= 20;            // 12.2
  // docs/hardware.md: 13.0.0 and 13.0.1 stick, 12.8 and 12.9 do not. 11.8 was not tried, and what
  // may spoil a thread is not done untried.
  quirks.ids_stick = version >= 130000 || version == 18;
  if (version >= 130000) quirks.launch_rule = LaunchRule::Verdict::kDriverOnly;
  // Measured under CUDA 13.0's driver; under its own it was not.
  if (version == 18) {
    quirks.launch_rule = driver_version == 0 || driver_version >= 12000
                             ? LaunchRule::Verdict::kRuntimeOnly
                             : LaunchRule::Verdict::kBothDomains;
  }
  for (const Entry& entry : kEntries) {
    if (version < entry.first || version > entry.last) continue;
    quirks.eager |= entry.eager;
    quirks.no_disarm |= entry.no_disarm;
    if (entry.reason != nullptr) quirks.reason = entry.reason;
  }
  return quirks;
}

uint32_t version_of(uint32_t answered, uint32_t major) noexcept {
  return answered == 18 && major == 12 ? 19 : answered;
}

uint32_t cuda_major_of(uint32_t version) noexcept {
  if (version >= 100000) return version / 10000;
  return version >= 19 ? 12 : 11;
}

}  // namespace gpuprof::cupti

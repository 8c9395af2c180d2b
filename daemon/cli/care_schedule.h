// SPDX-License-Identifier: Apache-2.0
//
// CareSchedule: when a target's lease is renewed and its status page is read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace gpuprof::cli {

// A target that is not armed yet is looked at in every tick at first, so that the begin of its
// trace is known well, and less often the longer it waits for its first launch: the begin is known
// to a sixteenth of the wait. A node may have hundreds that never launch. One whose page cannot be
// read (stopped, or a hostile one that keeps it half-written) must not take the time that the
// others' leases need: it is read no oftener than its lease is renewed. Times are CLOCK_MONOTONIC.
class CareSchedule {
 public:
  static constexpr uint64_t kIntervalNs = 500'000'000;
  static constexpr size_t kMany = 64;

  // Control was taken. The first renewals of targets that were taken together, one `index` each,
  // are spread over the interval.
  void begin(uint64_t now_ns, uint64_t index) {
    constexpr uint64_t kSlots = 25;  // an interval's ticks
    begun_ns_ = now_ns;
    next_renewal_ns_ = now_ns + (1 + index % kSlots) * (kIntervalNs / kSlots);
  }
  // Something was asked of it just now: as after begin().
  void look_closely(uint64_t now_ns) {
    begun_ns_ = now_ns;
    next_look_ns_ = 0;
  }
  // Renew the lease now; the next time is one interval later, or two where there are so many
  // targets that renewing is what watching them costs.
  bool take_renewal(uint64_t now_ns, size_t targets = 1) {
    if (now_ns < next_renewal_ns_) return false;
    next_renewal_ns_ = now_ns + (targets > kMany ? 2 : 1) * kIntervalNs;
    return true;
  }
  // Read the page now. `renewed`: what take_renewal() said in this tick.
  [[nodiscard]] bool read_due(uint64_t now_ns, bool renewed, bool is_armed) const {
    return now_ns >= next_read_ns_ && (renewed || (!is_armed && now_ns >= next_look_ns_));
  }
  void read_done(uint64_t now_ns) {
    next_look_ns_ = now_ns + std::min(kIntervalNs, (now_ns - std::min(now_ns, begun_ns_)) / 16);
  }
  void read_failed(uint64_t now_ns) { next_read_ns_ = now_ns + kIntervalNs; }

 private:
  uint64_t begun_ns_ = 0;
  uint64_t next_renewal_ns_ = 0;
  uint64_t next_look_ns_ = 0;
  uint64_t next_read_ns_ = 0;
};

}  // namespace gpuprof::cli

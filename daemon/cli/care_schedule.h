// SPDX-License-Identifier: Apache-2.0
//
// CareSchedule: when a target's lease is renewed and its status page is read.
#pragma once

#include <cstdint>

namespace gpuprof::cli {

// A target that is not armed yet is looked at in every tick, so that the begin of its trace is
// known well. One whose page cannot be read (stopped, or a hostile one that keeps it half-written)
// must not take the time that the others' leases need: it is read no oftener than its lease is
// renewed. Times are CLOCK_MONOTONIC.
class CareSchedule {
 public:
  static constexpr uint64_t kIntervalNs = 500'000'000;

  // Renew the lease now; the next time is one interval later.
  bool take_renewal(uint64_t now_ns) {
    if (now_ns < next_renewal_ns_) return false;
    next_renewal_ns_ = now_ns + kIntervalNs;
    return true;
  }
  // Read the page now. `renewed`: what take_renewal() said in this tick.
  [[nodiscard]] bool read_due(uint64_t now_ns, bool renewed, bool is_armed) const {
    return now_ns >= next_read_ns_ && (renewed || !is_armed);
  }
  void read_failed(uint64_t now_ns) { next_read_ns_ = now_ns + kIntervalNs; }

 private:
  uint64_t next_renewal_ns_ = 0;
  uint64_t next_read_ns_ = 0;
};

}  // namespace gpuprof::cli

// SPDX-License-Identifier: Apache-2.0
//
// TraceGaps: the times in which a process's shim recorded nothing although it was asked to.
#pragma once

#include <cstdint>
#include <string>

#include "daemon/target/shim_status.h"

namespace gpuprof::cli {

// The shim stops by itself where its lease lapses: this process was stopped or got no CPU time, its
// renewals failed, or the control page was overwritten. It begins again with the next renewal. It
// stops too where it is asked to yield CUPTI, until that is taken back.
// Where CUPTI fails it ends for good. What it tells of that (status page: arms, off_since_ns,
// off_ns) is compared with what was so when we came. Times are CLOCK_MONOTONIC.
class TraceGaps {
 public:
  enum class Cause { kNone, kYielded, kStalled, kUnwritable, kOverwritten, kEnded };

  // When the shim is first seen. `was_running`: it may have been armed before us, and what it did
  // then is no gap. `since_ns`: no gap began earlier. `now_ns` and it are of our clock.
  void begin(const target::ShimStatus& status, bool was_running, uint64_t since_ns,
             uint64_t now_ns);
  // A renewal of the lease was written, or could not be.
  void renewed(uint32_t lease_ms, uint64_t now_ns);
  void renewal_failed(const std::string& why) { renewal_error_ = why; }
  // It was asked to stop, for another client of CUPTI: the gap that begins now was wanted.
  void yielded() { yields_ += recording_ ? 1 : 0; }
  // It is asked to go on; where it had not stopped yet there was no gap.
  void taken_back() { yields_ -= recording_ && yields_ > 0 ? 1 : 0; }
  // Later states, until the shim is asked to stop.
  void update(const target::ShimStatus& status, uint64_t now_ns);

  [[nodiscard]] uint64_t count() const { return count_; }
  [[nodiscard]] uint64_t total_ns() const { return total_ns_; }
  // What the page tells of arms or times cannot be true: the numbers are 0.
  [[nodiscard]] bool implausible() const { return implausible_; }
  [[nodiscard]] Cause cause() const;
  // What it means and what to do, in one line; empty: no gap.
  [[nodiscard]] std::string line(uint32_t pid) const;

 private:
  bool begun_ = false;
  uint32_t first_arms_ = 0;     // the page's number once it recorded for us
  uint64_t off_before_ns_ = 0;  // not recorded before it recorded for us
  uint64_t since_ns_ = 0;
  uint64_t renewed_ns_ = 0;
  uint64_t count_ = 0;
  uint64_t total_ns_ = 0;
  uint64_t yields_ = 0;  // of the gaps
  uint32_t lease_ms_ = 0;
  bool open_ = false;       // it did not begin again
  bool recording_ = false;  // as last seen
  bool stalled_ = false;
  bool implausible_ = false;
  std::string renewal_error_;
  std::string ended_by_;
};

// The word of the summary: "none", "yielded", "stalled", "unwritable", "overwritten", "ended".
const char* cause_name(TraceGaps::Cause cause);

}  // namespace gpuprof::cli

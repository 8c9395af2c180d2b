// SPDX-License-Identifier: Apache-2.0
// Holds a thread of the workload to its rate.
#pragma once

#include <cstdint>
#include <ctime>

namespace workload {

/// Launch `i` is let go when its turn has come. Sleeps in steps of a millisecond or of a burst, so
/// that high rates cost few system calls.
class Pace {
 public:
  /// rate: launches a second, 0 for flat out; seconds: 0 for no end; steps: rate and 100 times the
  /// rate in turns of half a second; burst: launches let go together.
  Pace(uint64_t rate, uint64_t seconds, bool steps, uint64_t burst)
      : rate_(rate),
        seconds_(seconds),
        steps_(steps),
        burst_(burst),
        begin_ns_(now()),
        segment_ns_(begin_ns_) {}

  /// False: the time is up.
  bool wait(uint64_t i) {
    if (rate_ == 0) return seconds_ == 0 || i % 256 != 0 || !over(now());
    if (i < allowed_) return true;
    for (;;) {
      const uint64_t at = now();
      if (over(at)) return false;
      advance(at);
      if (i < allowed_) return true;
      timespec pause{0, 1'000'000};
      nanosleep(&pause, nullptr);
    }
  }

 private:
  static uint64_t now() {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
  }

  bool over(uint64_t at) const {
    return seconds_ != 0 && at - begin_ns_ >= seconds_ * 1'000'000'000u;
  }

  void advance(uint64_t at) {
    constexpr uint64_t kTurnNs = 500'000'000;
    if (steps_ && at - segment_ns_ >= kTurnNs) {
      base_ = allowed_;
      segment_ns_ = at;
      fast_ = !fast_;
    }
    const uint64_t rate = fast_ ? rate_ * 100 : rate_;
    uint64_t due = base_ + (at - segment_ns_) * rate / 1'000'000'000u;
    due -= due % burst_;
    if (due > allowed_) allowed_ = due;
  }

  uint64_t rate_;
  uint64_t seconds_;
  bool steps_;
  uint64_t burst_;
  uint64_t begin_ns_;
  uint64_t segment_ns_;
  uint64_t base_ = 0;
  uint64_t allowed_ = 0;
  bool fast_ = false;
};

}  // namespace workload

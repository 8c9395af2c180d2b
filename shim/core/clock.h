// SPDX-License-Identifier: Apache-2.0
//
// Clocks. Everything on the wire is CLOCK_MONOTONIC; CUPTI's timestamps are CLOCK_REALTIME
// (measured: within 1 us), which an administrator or NTP may step.
//
// ClockConverter holds the last few offsets REALTIME - MONOTONIC with the moment from which each
// holds. A record is converted by the newest offset that puts it into that offset's own time, so
// that records from before a step keep the offset of before. A record's end is its start plus the
// duration that CUPTI reported: durations never change by conversion.
#pragma once

#include <atomic>
#include <cstdint>

namespace gpuprof::shim {

// CLOCK_MONOTONIC, ns.
uint64_t monotonic_ns();
// CLOCK_MONOTONIC_COARSE, ns: a few ns to read, 1-10 ms resolution; for windows only.
uint64_t monotonic_coarse_ns();
// From since_ns to now_ns; 0 if another thread has read the clock later than this one.
constexpr uint64_t elapsed_ns(uint64_t since_ns, uint64_t now_ns) {
  return now_ns > since_ns ? now_ns - since_ns : 0;
}

class ClockConverter {
 public:
  static constexpr uint32_t kSegments = 8;
  // An offset that moves by more than this between two samples is a step (slewing is ≤ 500 ppm,
  // i.e. 50 us in the 100 ms between drains).
  static constexpr int64_t kStepNs = 1'000'000;

  constexpr ClockConverter() = default;

  // Samples both clocks (three tries, the tightest pair counts) and updates. Call at the start of
  // each drain and once a service round. A step is counted CLOCK_STEP. Any thread; a caller that
  // finds another one sampling returns at once.
  void sample();
  // The same with given readings: REALTIME `realtime_ns` was taken between the two MONOTONIC ones.
  // True if it was a step.
  bool add_sample(uint64_t monotonic_before_ns, uint64_t realtime_ns, uint64_t monotonic_after_ns);

  // REALTIME start and end of one record to MONOTONIC, `now_ns` (MONOTONIC) bounding it from above.
  // False (and the caller counts INVALID_TIME) if start or end is 0, start > end, or no sample has
  // been taken. Lock-free, any thread.
  bool convert(uint64_t start_realtime_ns, uint64_t end_realtime_ns, uint64_t now_ns,
               uint64_t* start_ns, uint64_t* end_ns) const;

  uint64_t steps() const { return steps_.load(std::memory_order_relaxed); }

 private:
  struct Segment {
    std::atomic<uint64_t> from_ns{0};   // MONOTONIC: holds from here on
    std::atomic<int64_t> offset_ns{0};  // REALTIME - MONOTONIC
  };
  Segment segments_[kSegments];
  std::atomic<uint64_t> newest_{0};  // 1 + index (mod kSegments) of the newest; 0: none
  std::atomic<uint64_t> last_sample_ns_{0};
  std::atomic<uint64_t> steps_{0};
  std::atomic<bool> writing_{false};
};

ClockConverter& clock_converter();

}  // namespace gpuprof::shim

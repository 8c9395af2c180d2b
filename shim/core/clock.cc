// SPDX-License-Identifier: Apache-2.0
#include "shim/core/clock.h"

#include <ctime>

#include "shim/core/status.h"

namespace gpuprof::shim {
namespace {

// How far a record may seem to reach past now or before its segment: CUPTI interpolates GPU times.
constexpr int64_t kSlackNs = 1'000'000;
// A pair whose two MONOTONIC readings lie further apart was preempted between them.
constexpr uint64_t kLoosePairNs = 500'000;

constinit ClockConverter the_converter;

uint64_t read_clock(clockid_t id) {
  timespec now;
  clock_gettime(id, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace

uint64_t monotonic_ns() { return read_clock(CLOCK_MONOTONIC); }
uint64_t monotonic_coarse_ns() { return read_clock(CLOCK_MONOTONIC_COARSE); }

ClockConverter& clock_converter() { return the_converter; }

void ClockConverter::sample() {
  uint64_t best_before = 0, best_real = 0, best_after = UINT64_MAX;
  for (int tries = 0; tries < 3; ++tries) {
    const uint64_t before = read_clock(CLOCK_MONOTONIC);
    const uint64_t real = read_clock(CLOCK_REALTIME);
    const uint64_t after = read_clock(CLOCK_MONOTONIC);
    if (after - before < best_after - best_before) {
      best_before = before;
      best_real = real;
      best_after = after;
    }
  }
  if (add_sample(best_before, best_real, best_after)) count_drop(GPUPROF_DROP_CLOCK_STEP);
}

bool ClockConverter::add_sample(uint64_t monotonic_before_ns, uint64_t realtime_ns,
                                uint64_t monotonic_after_ns) {
  if (writing_.exchange(true, std::memory_order_acquire)) return false;
  const uint64_t width = monotonic_after_ns - monotonic_before_ns;
  const uint64_t middle = monotonic_before_ns + width / 2;
  const auto offset = static_cast<int64_t>(realtime_ns - middle);
  const uint64_t newest = newest_.load(std::memory_order_relaxed);
  bool step = false;
  if (newest == 0) {
    segments_[0].from_ns.store(0, std::memory_order_relaxed);
    segments_[0].offset_ns.store(offset, std::memory_order_relaxed);
    newest_.store(1, std::memory_order_release);
    last_sample_ns_.store(middle, std::memory_order_relaxed);
  } else if (width <= kLoosePairNs) {
    Segment& current = segments_[(newest - 1) % kSegments];
    const uint64_t last = last_sample_ns_.load(std::memory_order_relaxed);
    const int64_t moved = offset - current.offset_ns.load(std::memory_order_relaxed);
    // Slewing adds up while nobody samples: 0.1 % of the time is twice its rate.
    const int64_t allowed = kStepNs + static_cast<int64_t>((middle - last) / 1000);
    step = moved > allowed || moved < -allowed;
    if (step) {
      // It happened somewhere after the last sample, so the new offset may hold from there on.
      Segment& fresh = segments_[newest % kSegments];
      fresh.from_ns.store(last, std::memory_order_relaxed);
      fresh.offset_ns.store(offset, std::memory_order_relaxed);
      newest_.store(newest + 1, std::memory_order_release);
      steps_.fetch_add(1, std::memory_order_relaxed);
    } else {
      current.offset_ns.store(offset, std::memory_order_relaxed);
    }
    last_sample_ns_.store(middle, std::memory_order_relaxed);
  }
  writing_.store(false, std::memory_order_release);
  return step;
}

bool ClockConverter::convert(uint64_t start_realtime_ns, uint64_t end_realtime_ns, uint64_t now_ns,
                             uint64_t* start_ns, uint64_t* end_ns) const {
  if (start_realtime_ns == 0 || end_realtime_ns < start_realtime_ns) return false;
  const uint64_t newest = newest_.load(std::memory_order_acquire);
  if (newest == 0) return false;
  const uint64_t duration = end_realtime_ns - start_realtime_ns;
  const uint64_t oldest = newest > kSegments ? newest - kSegments : 0;
  // The newest offset stands if none fits: a time that is somewhat off, with the right duration.
  uint64_t start = 0;
  for (uint64_t i = newest; i > oldest; --i) {
    const Segment& segment = segments_[(i - 1) % kSegments];
    const uint64_t candidate =
        start_realtime_ns -
        static_cast<uint64_t>(segment.offset_ns.load(std::memory_order_relaxed));
    const auto since_from =
        static_cast<int64_t>(candidate - segment.from_ns.load(std::memory_order_relaxed));
    const auto past_now = static_cast<int64_t>(candidate + duration - now_ns);
    if (i == newest) start = candidate;
    if (since_from >= -kSlackNs && past_now <= kSlackNs) {
      start = candidate;
      break;
    }
  }
  if (static_cast<int64_t>(start) <= 0) return false;
  *start_ns = start;
  *end_ns = start + duration;
  return true;
}

}  // namespace gpuprof::shim

// SPDX-License-Identifier: Apache-2.0
#include "shim/core/correlation.h"

namespace gpuprof::shim {
namespace {

constexpr int64_t kMoveAfterIds = 1 << 20;

constinit Correlations the_correlations;

WideCorrelation narrow(uint64_t wide, bool before_arm) {
  return WideCorrelation{static_cast<uint32_t>(wide), static_cast<uint32_t>(wide >> 32),
                         before_arm};
}

}  // namespace

Correlations& correlations() { return the_correlations; }

uint64_t Correlations::widen(uint32_t id, uint64_t recent) const {
  // The nearest value with these low bits: the difference as a signed number.
  const auto distance = static_cast<int32_t>(id - static_cast<uint32_t>(recent));
  return recent + static_cast<uint64_t>(int64_t{distance});
}

uint32_t Correlations::begin_arm(uint32_t first_id) {
  // Two further, not one: an id just below `first_id` may lie before the wrap, in the epoch
  // between.
  const uint64_t epoch = (recent_.load(std::memory_order_relaxed) >> 32) + 2;
  const uint64_t wide = epoch << 32 | first_id;
  first_.store(wide, std::memory_order_relaxed);
  recent_.store(wide, std::memory_order_release);
  return static_cast<uint32_t>(epoch);
}

uint32_t Correlations::begin_arm_at_init() {
  const uint32_t epoch = begin_arm(0);
  // Nothing was launched before: an execution whose launch callback has not returned yet, with an
  // id just below a wrap, is not one from before the arm.
  first_.store(0, std::memory_order_relaxed);
  return epoch;
}

WideCorrelation Correlations::launch(uint32_t id) {
  uint64_t recent = recent_.load(std::memory_order_acquire);
  const uint64_t wide = widen(id, recent);
  if (static_cast<int64_t>(wide - recent) > kMoveAfterIds) {
    // Lost races are fine as long as it only grows.
    while (wide > recent &&
           !recent_.compare_exchange_weak(recent, wide, std::memory_order_relaxed)) {
    }
  }
  // A launch on another thread can have a smaller id than the one that armed and be seen after it.
  uint64_t first = first_.load(std::memory_order_relaxed);
  while (wide < first && !first_.compare_exchange_weak(first, wide, std::memory_order_relaxed)) {
  }
  return narrow(wide, false);
}

WideCorrelation Correlations::execution(uint32_t id) const {
  const uint64_t wide = widen(id, recent_.load(std::memory_order_acquire));
  return narrow(wide, wide < first_.load(std::memory_order_relaxed));
}

}  // namespace gpuprof::shim

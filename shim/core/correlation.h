// SPDX-License-Identifier: Apache-2.0
//
// Correlations: CUPTI's 32-bit ids, which wrap in about 2 h at 500k launches a second and run on
// while we are disarmed, widened by an epoch to (epoch, id).
//
// A wide id is epoch << 32 | id. One atomic holds a recent wide id; any other id of the same time
// is the value nearest to it. It need not be exact, only within 2^31 of every id in flight, so
// launches move it once in 2^20 ids and otherwise only read. Each arm starts a new epoch, whatever
// the id did meanwhile; epochs only grow.
//
// Threads: begin_arm() while nothing else of this arm runs; the others from any thread, lock-free.
#pragma once

#include <atomic>
#include <cstdint>

namespace gpuprof::shim {

struct WideCorrelation {
  uint32_t id = 0;
  uint32_t epoch = 0;
  bool before_arm = false;  // executions only: older than this arm's first observed launch
};

class Correlations {
 public:
  constexpr Correlations() = default;

  // Late arm: `first_id` is the id of the launch in whose exit callback activity gets enabled. Call
  // it before ActivityEnable. Returns the new epoch.
  uint32_t begin_arm(uint32_t first_id);
  // Arm inside InitializeInjection, before any launch: nothing is older than this arm.
  uint32_t begin_arm_at_init();

  // Every launch callback, drawn or not: two or three loads.
  WideCorrelation launch(uint32_t id);
  // An activity record; never moves the arm's beginning.
  WideCorrelation execution(uint32_t id) const;

  // 0 before the first arm.
  uint32_t epoch() const {
    return static_cast<uint32_t>(recent_.load(std::memory_order_relaxed) >> 32);
  }

 private:
  uint64_t widen(uint32_t id, uint64_t recent) const;

  std::atomic<uint64_t> recent_{0};
  std::atomic<uint64_t> first_{0};  // smallest wide id that a launch of this arm had
};

Correlations& correlations();

}  // namespace gpuprof::shim

// SPDX-License-Identifier: Apache-2.0
//
// Which launches get a stack. Each thread draws its launches of a kind (kernels, copies, fills,
// graphs) with a probability p that follows their rate, so that it spends about `per_thread` stacks a
// second on that kind, and the process `per_process` on everything.
//
// Unbiased by construction: every launch is drawn by its own coin of probability p, where p depends
// only on what happened before that launch, and weight = 1/p is the p of that very coin (a
// Horvitz-Thompson estimate). The coins are thrown as geometric skips, which costs a decrement per
// launch. A skip that is under way when p changes is thrown away and drawn anew with the new p:
// what is left of a geometric skip is geometric again, so this is exact; keeping the old skip with
// the new weight (or the old p) would over-count the launches around every change.
//
// p changes when a window of 100 ms ends (to the rate of the window), and inside a window when
// twice the window's budget has been drawn already (halved: a burst after a pause costs budget *
// log2(burst length) stacks, not all of them), and when the process's scale changes for the same
// two reasons. p is never below 2^-20. Integer arithmetic only: an application may have
// floating-point traps on.
#pragma once

#include <atomic>
#include <cstdint>

#include "proto/usdt_abi.h"

namespace gpuprof::shim {

inline constexpr uint64_t kSamplerWindowNs = 100'000'000;
inline constexpr uint32_t kDefaultThreadRate = 200;
inline constexpr uint32_t kDefaultProcessRate = 1000;
inline constexpr uint64_t kDefaultProcessBytes = 32u << 20;
inline constexpr uint32_t kRateUnlimited = UINT32_MAX;
inline constexpr uint64_t kWeightOne = uint64_t{1} << 32;         // p = 1
inline constexpr uint64_t kWeightMax = uint64_t{1} << (32 + 20);  // p = 2^-20

// 0 anywhere: the default. kRateUnlimited as per_thread: p = 1 whatever the process budget says,
// and no byte limit unless process_bytes names one.
struct SamplerRates {
  uint32_t per_thread = 0;
  uint32_t per_process = 0;
  uint64_t process_bytes = 0;
  uint64_t seed = 0;  // 0 random; else thread k (by first launch) uses stream k of it
};

// Shared by all threads. As constructed: the defaults with seed 0. Lock-free.
class ProcessBudget {
 public:
  constexpr ProcessBudget() = default;
  // New rates: every thread starts afresh (p = 1) at its next launch. Service thread or init.
  void configure(const SamplerRates& rates, uint64_t now_ns);
  // Charges the bytes of a stack that is about to be copied. False: the process has spent twice its
  // bytes for this window already; the caller drops the launch and counts STACK_BUDGET.
  bool charge_bytes(uint64_t bytes, uint64_t now_ns);

 private:
  friend struct ThreadSampler;
  void on_drawn(uint64_t now_ns);
  void roll_window(uint64_t now_ns);

  std::atomic<uint32_t> generation_{0};  // configure() bumps it
  std::atomic<uint32_t> thread_rate_{kDefaultThreadRate};
  std::atomic<uint32_t> process_rate_{kDefaultProcessRate};
  std::atomic<uint64_t> process_bytes_{kDefaultProcessBytes};
  std::atomic<uint64_t> seed_{0};
  std::atomic<uint32_t> next_stream_{0};
  // What 1/p of every thread is multiplied by, 32.32; changes are what threads watch for.
  alignas(64) std::atomic<uint64_t> scale_q32_{kWeightOne};
  alignas(64) std::atomic<uint64_t> window_start_ns_{0};
  std::atomic<uint64_t> window_demand_q16_{0};  // drawn, each times the scale it was drawn at
  std::atomic<uint64_t> window_drawn_{0};
  std::atomic<uint64_t> window_bytes_{0};
  std::atomic<uint64_t> halve_at_{2 * kDefaultProcessRate / 10};
  std::atomic<uint64_t> halve_bytes_at_{1};  // quarters of the window's bytes beyond all of them
};

// One thread's state for one kind: plain data, valid when zeroed, nothing to destroy.
struct ThreadSampler {
  // One launch at `now_ns` (any clock that ticks finer than the window, the same for all calls).
  // True: drawn, *weight_q32 = 1/p.
  bool draw(ProcessBudget& budget, uint64_t now_ns, uint64_t* weight_q32);

  uint64_t skip;            // launches still to pass over
  uint64_t weight_q32;      // 1/p in force, process scale included; 0 before the first launch
  uint64_t own_weight_q32;  // 1/p of this thread's own rate
  uint64_t scale_q32;       // the process scale that `weight_q32` includes
  uint64_t window_start_ns;
  uint64_t window_launches;
  uint64_t window_drawn;
  uint64_t halve_at;
  uint64_t rng[2];
  uint32_t generation;

 private:
  void start(ProcessBudget& budget, uint64_t now_ns);
  void end_window(ProcessBudget& budget, uint64_t now_ns);
  void apply_weight(ProcessBudget& budget);
  void redraw();
  uint64_t next_random();
};

// --- the process's own, used in launch callbacks ------------------------------------------------

// Draws the calling thread's launch of `kind` and counts it (status.h count_launch). Reads the coarse
// clock.
bool draw_launch(gpuprof_kind kind, uint64_t* weight_q32);
bool charge_stack_bytes(uint64_t bytes);
void configure_sampler(const SamplerRates& rates);

}  // namespace gpuprof::shim

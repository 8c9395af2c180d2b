// SPDX-License-Identifier: Apache-2.0
//
// Which launches get a stack. Each thread sorts its launches into strata, by a key that stands for
// what is launched (a kernel, a graph, a kind of copy), and each stratum draws its launches with a
// probability p of its own. The strata are what the joiner spreads unsampled work over (its keys),
// so that a kernel launched 300 times beside another's 20,000 gets stacks: with one p for both it
// had 0.24 of them (docs/adr/0009).
//
// Unbiased by construction: every launch is drawn by its own coin of probability p, where p depends
// only on what happened before that launch, and weight = 1/p is the p of that very coin (a
// Horvitz-Thompson estimate). The coins are thrown as geometric skips, which costs a decrement per
// launch. A skip that is under way when p changes is thrown away and drawn anew with the new p:
// what is left of a geometric skip is geometric again, so this is exact; keeping the old skip with
// the new weight (or the old p) would over-count the launches around every change. That keys share
// a stratum when the table is full, or that a stratum is given away, changes p but not this.
//
// A stratum begins at p = 1. p changes when a window of 100 ms ends (to the stratum's rate over its
// share of the thread's `per_thread` stacks a second: strata that need less leave the rest to the
// others), inside a window when twice the stratum's budget for the window has been drawn already
// (halved: a burst of L costs budget * log2(L / budget) stacks, not all of them), and when the
// process's scale changes for the same two reasons. p is never below 2^-20. Integer arithmetic
// only: an application may have floating-point traps on.
#pragma once

#include <atomic>
#include <cstdint>

namespace gpuprof::shim {

inline constexpr uint64_t kSamplerWindowNs = 100'000'000;
inline constexpr uint32_t kDefaultThreadRate = 200;
inline constexpr uint32_t kDefaultProcessRate = 1000;
// 256 of the largest stacks, were GPUPROF_STACK_MAX_BYTES 256 KiB; the mean one is far smaller.
inline constexpr uint64_t kDefaultProcessBytes = 64u << 20;
// What a stratum gets however many there are; at 100 ms windows two draws at p = 1 when it is new.
inline constexpr uint32_t kMinStratumRate = 2;
// A stratum that was idle for so long is given to a key that finds no other. Sooner would let two
// hot keys take a stratum from each other and start at p = 1 each time.
inline constexpr uint64_t kStratumIdleNs = 1'000'000'000;
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
  // Charges the bytes of a stack that is about to be copied. False: earlier stacks have spent twice
  // the window's bytes already; the caller drops the launch and counts STACK_BUDGET. So a window's
  // first stack passes whatever its size, and the last may overshoot by its own. Refused bytes
  // count as demand all the same: they lower the next window's p.
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

// One thread's state: plain data, valid when zeroed, nothing to destroy.
struct ThreadSampler {
  static constexpr uint32_t kProbes = 8;  // how far a key looks for its stratum
  static constexpr uint32_t kStrata = 128;

  // p and what it follows from, for the launches of one key.
  struct Stratum {
    uint64_t skip;            // launches still to pass over
    uint64_t weight_q32;      // 1/p in force, process scale included; 0 before the first launch
    uint64_t own_weight_q32;  // 1/p of this stratum's own rate
    uint64_t scale_q32;       // the process scale that `weight_q32` includes
    uint64_t window_start_ns;
    uint32_t window;  // the thread's window that the counts below are of
    uint32_t launches;
    uint32_t drawn;
    uint32_t budget;    // draws of one window
    uint32_t halve_at;  // drawn that halve p
  };

  // One launch of `key` (stratum_key) at `now_ns` (any clock that ticks finer than the window, the
  // same for all calls). True: drawn, *weight_q32 = 1/p.
  bool draw(ProcessBudget& budget, uint64_t key, uint64_t now_ns, uint64_t* weight_q32);

  // The stratum that `key` has or shares; one that is free or long idle becomes its own.
  Stratum& find(uint64_t key);

  // Whose each stratum is; 0: free. A key looks from its place on.
  uint32_t tags[kStrata];
  Stratum strata[kStrata];
  uint64_t window_start_ns;
  uint64_t rng[2];
  uint32_t window;      // counts from 1; 0 before the first launch
  uint32_t level_rate;  // stacks a second for a stratum that could use more
  uint32_t fresh;       // strata of this window that were idle in the last one
  uint32_t generation;

 private:
  void start(ProcessBudget& budget, uint64_t now_ns);
  void end_window(ProcessBudget& budget, uint64_t now_ns);
  uint32_t level(uint32_t rate, uint64_t elapsed_ns) const;
  Stratum& claim(uint32_t place, uint32_t tag);
  void enter_window(ProcessBudget& budget, Stratum& stratum);
  void apply_weight(ProcessBudget& budget, Stratum& stratum);
  void redraw(Stratum& stratum);
  uint64_t next_random();
};

// --- the process's own, used in launch callbacks ------------------------------------------------

// The key of what is launched: `kind` is any small number, `work` a handle (a function, a graph) or
// a number that tells it from others of its kind. Equal keys of different work cost accuracy, no
// more.
inline uint64_t stratum_key(uint32_t kind, uint32_t context, uint64_t work) {
  // splitmix64's finalizer: one product alone puts handles of some spacings on few places.
  uint64_t z = work ^ uint64_t { context } * 0xd6e8feb86659fd93u ^ uint64_t { kind } << 56;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Draws the calling thread's launch and counts it (status.h count_launch). Reads the coarse clock.
bool draw_launch(uint64_t key, uint64_t* weight_q32);
bool charge_stack_bytes(uint64_t bytes);
void configure_sampler(const SamplerRates& rates);

}  // namespace gpuprof::shim

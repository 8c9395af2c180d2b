// SPDX-License-Identifier: Apache-2.0
#include "shim/core/sampler.h"

#include "shim/core/clock.h"
#include "shim/core/geometric.h"
#include "shim/core/self.h"
#include "shim/core/status.h"

namespace gpuprof::shim {
namespace {

constexpr uint64_t kWindowsPerSecond = 1'000'000'000u / kSamplerWindowNs;
constexpr uint64_t kScaleMax = kWeightOne << 12;
constexpr uint64_t kBytesUnlimited = UINT64_MAX / 16;

constinit ProcessBudget the_budget;
// One sampler a kind: a graph launch or a copy that is rare beside a flood of kernels would else share
// their p and hardly ever get a stack. Kinds never share a key when unsampled work is spread, so each
// kind's estimate stays unbiased. Zeroed for each new thread and freed by the C library with the
// thread: no destructor, no list.
__thread ThreadSampler this_thread[GPUPROF_KIND_GRAPH + 1];

uint64_t clamp(uint64_t value, uint64_t low, uint64_t high) {
  return value < low ? low : value > high ? high : value;
}

// a * b / c without overflow in between, saturated to 64 bits.
uint64_t multiply_divide(uint64_t a, uint64_t b, uint64_t c) {
  const unsigned __int128 result = static_cast<unsigned __int128>(a) * b / (c == 0 ? 1 : c);
  return result > UINT64_MAX ? UINT64_MAX : static_cast<uint64_t>(result);
}

// What a rate allows in one window; at least one, or nothing would ever be drawn.
uint64_t window_budget(uint32_t rate) {
  return rate < kWindowsPerSecond ? 1 : rate / kWindowsPerSecond;
}

// 1/p, 32.32, that makes `drawn` launches in `elapsed_ns` meet `rate` a second.
uint64_t weight_for(uint64_t drawn, uint32_t rate, uint64_t elapsed_ns) {
  const auto demand = static_cast<unsigned __int128>(drawn) * 1'000'000'000u << 32;
  const auto allowed = static_cast<unsigned __int128>(rate) * elapsed_ns;
  const unsigned __int128 weight = demand / (allowed == 0 ? 1 : allowed);
  return weight > kWeightMax ? kWeightMax : static_cast<uint64_t>(weight);
}

}  // namespace

// --- ProcessBudget ------------------------------------------------------------------------------

void ProcessBudget::configure(const SamplerRates& rates, uint64_t now_ns) {
  const auto or_default = [](auto value, auto otherwise) { return value != 0 ? value : otherwise; };
  thread_rate_.store(or_default(rates.per_thread, kDefaultThreadRate), std::memory_order_relaxed);
  process_rate_.store(or_default(rates.per_process, kDefaultProcessRate),
                      std::memory_order_relaxed);
  // Who wants every launch's stack and names no byte limit has none.
  const uint64_t bytes_otherwise =
      rates.per_thread == kRateUnlimited ? kBytesUnlimited : kDefaultProcessBytes;
  process_bytes_.store(or_default(rates.process_bytes, bytes_otherwise), std::memory_order_relaxed);
  uint64_t seed = rates.seed;
  if (seed == 0) random_bytes(&seed, sizeof seed);
  seed_.store(seed, std::memory_order_relaxed);
  next_stream_.store(0, std::memory_order_relaxed);
  scale_q32_.store(kWeightOne, std::memory_order_relaxed);
  window_demand_q16_.store(0, std::memory_order_relaxed);
  window_drawn_.store(0, std::memory_order_relaxed);
  window_bytes_.store(0, std::memory_order_relaxed);
  window_start_ns_.store(now_ns, std::memory_order_relaxed);
  halve_at_.store(2 * window_budget(process_rate_.load(std::memory_order_relaxed)),
                  std::memory_order_relaxed);
  halve_bytes_at_.store(1, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
}

void ProcessBudget::on_drawn(uint64_t now_ns) {
  if (process_rate_.load(std::memory_order_relaxed) == kRateUnlimited) return;
  const uint64_t scale = scale_q32_.load(std::memory_order_relaxed);
  window_demand_q16_.fetch_add(scale >> 16, std::memory_order_relaxed);
  const uint64_t drawn = window_drawn_.fetch_add(1, std::memory_order_relaxed) + 1;
  roll_window(now_ns);
  uint64_t halve_at = halve_at_.load(std::memory_order_relaxed);
  if (drawn < halve_at || scale >= kScaleMax) return;
  const uint64_t step = window_budget(process_rate_.load(std::memory_order_relaxed));
  // The thread that moves the mark halves p for everybody.
  if (halve_at_.compare_exchange_strong(halve_at, halve_at + step, std::memory_order_relaxed)) {
    scale_q32_.store(2 * scale, std::memory_order_relaxed);
  }
}

void ProcessBudget::roll_window(uint64_t now_ns) {
  uint64_t start = window_start_ns_.load(std::memory_order_relaxed);
  const uint64_t elapsed = now_ns - start;
  // A time before the start is another thread's coarse tick: not elapsed.
  if (static_cast<int64_t>(elapsed) < static_cast<int64_t>(kSamplerWindowNs)) return;
  if (!window_start_ns_.compare_exchange_strong(start, now_ns, std::memory_order_relaxed)) return;
  const uint64_t demand_q16 = window_demand_q16_.exchange(0, std::memory_order_relaxed);
  const uint64_t drawn = window_drawn_.exchange(0, std::memory_order_relaxed);
  const uint64_t bytes = window_bytes_.exchange(0, std::memory_order_relaxed);
  const uint32_t rate = process_rate_.load(std::memory_order_relaxed);
  // Demand: what would have been drawn had the scale been 1.
  uint64_t scale = weight_for(demand_q16 >> 16, rate, elapsed);
  // Bytes likewise: the mean size of the drawn ones times the demand.
  const uint64_t bytes_demand = drawn == 0 ? 0 : multiply_divide(bytes, demand_q16 >> 16, drawn);
  const uint64_t bytes_allowed =
      multiply_divide(process_bytes_.load(std::memory_order_relaxed), elapsed, 1'000'000'000u);
  const uint64_t bytes_scale = multiply_divide(bytes_demand, kWeightOne, bytes_allowed);
  if (bytes_scale > scale) scale = bytes_scale;
  scale_q32_.store(clamp(scale, kWeightOne, kScaleMax), std::memory_order_relaxed);
  halve_at_.store(2 * window_budget(rate), std::memory_order_relaxed);
  halve_bytes_at_.store(1, std::memory_order_relaxed);
}

bool ProcessBudget::charge_bytes(uint64_t bytes, uint64_t now_ns) {
  roll_window(now_ns);
  const uint64_t budget = process_bytes_.load(std::memory_order_relaxed) / kWindowsPerSecond;
  const uint64_t spent = window_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  // Refusing what is drawn already favours the early launches of a window, so p is lowered three
  // times before it comes to that.
  uint64_t quarters = halve_bytes_at_.load(std::memory_order_relaxed);
  const uint64_t scale = scale_q32_.load(std::memory_order_relaxed);
  if (spent >= budget + quarters * (budget / 4) && scale < kScaleMax &&
      halve_bytes_at_.compare_exchange_strong(quarters, quarters + 1, std::memory_order_relaxed)) {
    scale_q32_.store(2 * scale, std::memory_order_relaxed);
  }
  return spent <= 2 * budget;
}

// --- ThreadSampler ------------------------------------------------------------------------------

uint64_t ThreadSampler::next_random() {
  // xoroshiro128++ (Blackman and Vigna, public domain algorithm).
  const auto rotate = [](uint64_t x, int by) { return x << by | x >> (64 - by); };
  const uint64_t s0 = rng[0];
  uint64_t s1 = rng[1];
  const uint64_t result = rotate(s0 + s1, 17) + s0;
  s1 ^= s0;
  rng[0] = rotate(s0, 49) ^ s1 ^ (s1 << 21);
  rng[1] = rotate(s1, 28);
  return result;
}

void ThreadSampler::redraw() { skip = geometric_skip(weight_q32, next_random()); }

void ThreadSampler::start(ProcessBudget& budget, uint64_t now_ns) {
  generation = budget.generation_.load(std::memory_order_acquire);
  // splitmix64 spreads (seed, stream) over the generator's state.
  uint64_t seed = budget.seed_.load(std::memory_order_relaxed) +
                  0x9e3779b97f4a7c15u *
                      (uint64_t{1} + budget.next_stream_.fetch_add(1, std::memory_order_relaxed));
  for (uint64_t& word : rng) {
    seed += 0x9e3779b97f4a7c15u;
    uint64_t z = seed;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    word = z ^ (z >> 31);
  }
  own_weight_q32 = kWeightOne;
  window_start_ns = now_ns;
  window_launches = 0;
  window_drawn = 0;
  halve_at = 2 * window_budget(budget.thread_rate_.load(std::memory_order_relaxed));
  weight_q32 = 0;
  apply_weight(budget);
}

void ThreadSampler::apply_weight(ProcessBudget& budget) {
  const bool unlimited = budget.thread_rate_.load(std::memory_order_relaxed) == kRateUnlimited;
  scale_q32 = budget.scale_q32_.load(std::memory_order_relaxed);
  const uint64_t weight = unlimited ? kWeightOne
                                    : clamp(multiply_divide(own_weight_q32, scale_q32, kWeightOne),
                                            kWeightOne, kWeightMax);
  if (weight == weight_q32) return;  // the skip under way stays valid
  weight_q32 = weight;
  redraw();
}

void ThreadSampler::end_window(ProcessBudget& budget, uint64_t now_ns) {
  const uint32_t rate = budget.thread_rate_.load(std::memory_order_relaxed);
  own_weight_q32 =
      clamp(weight_for(window_launches, rate, now_ns - window_start_ns), kWeightOne, kWeightMax);
  window_start_ns = now_ns;
  window_launches = 0;
  window_drawn = 0;
  halve_at = 2 * window_budget(rate);
  // Here too, since a scale that makes draws rare must not wait for one to be lifted.
  budget.roll_window(now_ns);
}

bool ThreadSampler::draw(ProcessBudget& budget, uint64_t now_ns, uint64_t* weight) {
  // p is settled first, from the past alone; then this launch's coin is looked at.
  if (generation != budget.generation_.load(std::memory_order_acquire) || weight_q32 == 0) {
    start(budget, now_ns);
  } else if (now_ns - window_start_ns >= kSamplerWindowNs) {
    end_window(budget, now_ns);
    apply_weight(budget);
  } else if (scale_q32 != budget.scale_q32_.load(std::memory_order_relaxed)) {
    apply_weight(budget);
  }
  ++window_launches;
  if (skip != 0) {
    --skip;
    return false;
  }
  *weight = weight_q32;
  redraw();
  budget.on_drawn(now_ns);
  if (++window_drawn >= halve_at) {
    halve_at += window_budget(budget.thread_rate_.load(std::memory_order_relaxed));
    own_weight_q32 = clamp(2 * own_weight_q32, kWeightOne, kWeightMax);
    apply_weight(budget);
  }
  return true;
}

// --- the process's own --------------------------------------------------------------------------

bool draw_launch(gpuprof_kind kind, uint64_t* weight_q32) {
  const uint32_t stratum = kind <= GPUPROF_KIND_GRAPH ? static_cast<uint32_t>(kind) : 0;
  const bool drawn = this_thread[stratum].draw(the_budget, monotonic_coarse_ns(), weight_q32);
  count_launch(drawn);
  return drawn;
}

bool charge_stack_bytes(uint64_t bytes) {
  return the_budget.charge_bytes(bytes, monotonic_coarse_ns());
}

void configure_sampler(const SamplerRates& rates) {
  the_budget.configure(rates, monotonic_coarse_ns());
}

}  // namespace gpuprof::shim

// SPDX-License-Identifier: Apache-2.0
#include "shim/core/sampler.h"

#include <cstring>

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
// 8 KiB, in the shim's block of thread-local memory: allocated and zeroed by the C library when a
// thread first uses it, freed with the thread. No destructor, no list.
__thread ThreadSampler this_thread;

uint64_t clamp(uint64_t value, uint64_t low, uint64_t high) {
  return value < low ? low : value > high ? high : value;
}

// a * b / c without overflow in between, saturated to 64 bits.
uint64_t multiply_divide(uint64_t a, uint64_t b, uint64_t c) {
  const unsigned __int128 result = static_cast<unsigned __int128>(a) * b / (c == 0 ? 1 : c);
  return result > UINT64_MAX ? UINT64_MAX : static_cast<uint64_t>(result);
}

// What a rate allows in one window; at least one, or nothing would ever be drawn.
uint32_t window_budget(uint32_t rate) {
  return rate < kWindowsPerSecond ? 1 : rate / static_cast<uint32_t>(kWindowsPerSecond);
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
  halve_at_.store(uint64_t{2} * window_budget(process_rate_.load(std::memory_order_relaxed)),
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
  halve_at_.store(uint64_t{2} * window_budget(rate), std::memory_order_relaxed);
  halve_bytes_at_.store(1, std::memory_order_relaxed);
}

bool ProcessBudget::charge_bytes(uint64_t bytes, uint64_t now_ns) {
  roll_window(now_ns);
  const uint64_t budget = process_bytes_.load(std::memory_order_relaxed) / kWindowsPerSecond;
  const uint64_t before = window_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  const uint64_t spent = before + bytes;
  // Refusing what is drawn already favours the early launches of a window, so p is lowered three
  // times before it comes to that.
  uint64_t quarters = halve_bytes_at_.load(std::memory_order_relaxed);
  const uint64_t scale = scale_q32_.load(std::memory_order_relaxed);
  if (spent >= budget + quarters * (budget / 4) && scale < kScaleMax &&
      halve_bytes_at_.compare_exchange_strong(quarters, quarters + 1, std::memory_order_relaxed)) {
    scale_q32_.store(2 * scale, std::memory_order_relaxed);
  }
  return before < 2 * budget || before == 0;
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

void ThreadSampler::redraw(Stratum& stratum) {
  stratum.skip = geometric_skip(stratum.weight_q32, next_random());
}

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
  // A thread's first start finds zeroes already.
  if (window != 0) memset(tags, 0, sizeof tags);
  window = 1;
  window_start_ns = now_ns;
  fresh = 0;
  level_rate = budget.thread_rate_.load(std::memory_order_relaxed);
}

ThreadSampler::Stratum& ThreadSampler::find(uint64_t key) {
  const uint32_t tag = static_cast<uint32_t>(key >> 32) | 1;
  const uint32_t place = static_cast<uint32_t>(key) % kStrata;
  for (uint32_t i = 0; i < kProbes; ++i) {
    const uint32_t at = (place + i) % kStrata;
    if (tags[at] == tag) return strata[at];
    if (tags[at] == 0) break;  // none becomes free again: the key is not behind it
  }
  return claim(place, tag);
}

// A free stratum, else one that is long idle, else one to share.
ThreadSampler::Stratum& ThreadSampler::claim(uint32_t place, uint32_t tag) {
  uint32_t oldest = place;
  for (uint32_t i = 0; i < kProbes; ++i) {
    const uint32_t at = (place + i) % kStrata;
    if (tags[at] == 0) {
      oldest = at;
      break;
    }
    if (strata[at].window_start_ns < strata[oldest].window_start_ns) oldest = at;
  }
  if (tags[oldest] != 0 && window_start_ns - strata[oldest].window_start_ns < kStratumIdleNs) {
    return strata[(place + (tag >> 16) % kProbes) % kStrata];
  }
  tags[oldest] = tag;
  strata[oldest] = {};
  return strata[oldest];
}

void ThreadSampler::apply_weight(ProcessBudget& budget, Stratum& stratum) {
  const bool unlimited = budget.thread_rate_.load(std::memory_order_relaxed) == kRateUnlimited;
  stratum.scale_q32 = budget.scale_q32_.load(std::memory_order_relaxed);
  const uint64_t weight =
      unlimited ? kWeightOne
                : clamp(multiply_divide(stratum.own_weight_q32, stratum.scale_q32, kWeightOne),
                        kWeightOne, kWeightMax);
  if (weight == stratum.weight_q32) return;  // the skip under way stays valid
  stratum.weight_q32 = weight;
  redraw(stratum);
}

// The rate that, given to every stratum of the window that ends which could use it, spends `rate`
// in all: strata that launch less keep what they launch, the others share what is left.
uint32_t ThreadSampler::level(uint32_t rate, uint64_t elapsed_ns) const {
  if (rate == kRateUnlimited) return rate;
  const uint64_t allowed_q8 = multiply_divide(uint64_t{rate} << 8, elapsed_ns, 1'000'000'000u);
  uint64_t share_q8 = 0;
  for (int round = 0; round < 4; ++round) {
    uint64_t content_q8 = 0, others = 0;
    for (uint32_t i = 0; i < kStrata; ++i) {
      if (tags[i] == 0 || strata[i].window != window) continue;
      const uint64_t launches_q8 = uint64_t{strata[i].launches} << 8;
      if (launches_q8 <= share_q8) {
        content_q8 += launches_q8;
      } else {
        ++others;
      }
    }
    if (others == 0) break;
    share_q8 = (allowed_q8 - clamp(content_q8, 0, allowed_q8)) / others;
  }
  const uint64_t level = multiply_divide(share_q8, 1'000'000'000u >> 8, elapsed_ns);
  const uint32_t floor = rate < kMinStratumRate ? rate : kMinStratumRate;
  return static_cast<uint32_t>(clamp(level, floor, rate));
}

void ThreadSampler::end_window(ProcessBudget& budget, uint64_t now_ns) {
  level_rate = level(budget.thread_rate_.load(std::memory_order_relaxed), now_ns - window_start_ns);
  ++window;
  window_start_ns = now_ns;
  fresh = 0;
  // Here too, since a scale that makes draws rare must not wait for one to be lifted.
  budget.roll_window(now_ns);
}

// A stratum's first launch in a window.
void ThreadSampler::enter_window(ProcessBudget& budget, Stratum& stratum) {
  const bool known = stratum.weight_q32 != 0;
  uint32_t rate = level_rate;
  if (!known || stratum.window + 1 != window) {
    // The level knows nothing of it: those that are new in a window share the thread's rate.
    const uint32_t all = budget.thread_rate_.load(std::memory_order_relaxed);
    const uint32_t shared = all == kRateUnlimited ? all : all / ++fresh;
    rate =
        static_cast<uint32_t>(clamp(shared, all < kMinStratumRate ? all : kMinStratumRate, rate));
  }
  stratum.own_weight_q32 = kWeightOne;
  if (known) {
    stratum.own_weight_q32 =
        clamp(weight_for(stratum.launches, rate, window_start_ns - stratum.window_start_ns),
              kWeightOne, kWeightMax);
  }
  stratum.window = window;
  stratum.window_start_ns = window_start_ns;
  stratum.launches = 0;
  stratum.drawn = 0;
  stratum.budget = window_budget(rate);
  stratum.halve_at = 2 * stratum.budget;
  apply_weight(budget, stratum);
}

bool ThreadSampler::draw(ProcessBudget& budget, uint64_t key, uint64_t now_ns, uint64_t* weight) {
  // p is settled first, from the past alone; then this launch's coin is looked at.
  if (window == 0 || generation != budget.generation_.load(std::memory_order_acquire)) {
    start(budget, now_ns);
  } else if (now_ns - window_start_ns >= kSamplerWindowNs) {
    end_window(budget, now_ns);
  }
  Stratum& stratum = find(key);
  if (stratum.window != window) {
    enter_window(budget, stratum);
  } else if (stratum.scale_q32 != budget.scale_q32_.load(std::memory_order_relaxed)) {
    apply_weight(budget, stratum);
  }
  ++stratum.launches;
  if (stratum.skip != 0) {
    --stratum.skip;
    return false;
  }
  *weight = stratum.weight_q32;
  redraw(stratum);
  budget.on_drawn(now_ns);
  if (++stratum.drawn >= stratum.halve_at) {
    stratum.halve_at += stratum.budget;
    stratum.own_weight_q32 = clamp(2 * stratum.own_weight_q32, kWeightOne, kWeightMax);
    apply_weight(budget, stratum);
  }
  return true;
}

// --- the process's own --------------------------------------------------------------------------

bool draw_launch(uint64_t key, uint64_t* weight_q32) {
  const bool drawn = this_thread.draw(the_budget, key, monotonic_coarse_ns(), weight_q32);
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

// SPDX-License-Identifier: Apache-2.0
//
// What the tests of the sampler share: simulated time, and a generator of their own.
#pragma once

#include <cstdint>

#include "shim/core/sampler.h"

namespace gpuprof::shim {

inline constexpr uint64_t kSecond = 1'000'000'000;

inline double weight_of(uint64_t q32) { return static_cast<double>(q32) / 4294967296.0; }

// Any decent generator, independent of the sampler's.
inline uint64_t splitmix(uint64_t& state) {
  uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

struct Simulation {
  ProcessBudget budget;
  uint64_t now = 1000 * kSecond;

  explicit Simulation(const SamplerRates& rates) { budget.configure(rates, now); }
};

}  // namespace gpuprof::shim

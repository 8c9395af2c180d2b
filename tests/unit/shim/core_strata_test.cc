// SPDX-License-Identifier: Apache-2.0
//
// The sampler's strata: what is launched seldom has stacks beside what floods, and each kernel's
// estimate is unbiased. Time is simulated; seeds are fixed.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <vector>

#include "shim/core/sampler.h"
#include "tests/unit/shim/core_simulation.h"

namespace gpuprof::shim {
namespace {

uint64_t kernel_key(uint64_t i) { return stratum_key(1, 1, 0x5581'2000'0000 + i * 0x2c0); }

struct Estimate {
  double launches = 0, drawn = 0, weights = 0, variance = 0, heaviest = 1;

  void launch(ThreadSampler& thread, Simulation& sim, uint64_t key) {
    uint64_t weight = 0;
    ++launches;
    const bool hit = thread.draw(sim.budget, key, sim.now, &weight);
    // A miss leaves the p of its coin in place.
    const double w = weight_of(hit ? weight : thread.find(key).weight_q32);
    variance += w - 1;
    heaviest = std::max(heaviest, w);
    if (!hit) return;
    ++drawn;
    weights += w;
  }
  double error() const { return weights - launches; }
  // Few draws of large weight are skewed: Bernstein's second term.
  double allowed() const { return 4.5 * std::sqrt(variance) + heaviest; }
};

// Measured on an H200: 20,000 tiny kernels at 250k/s, then 300 launches of another kernel at once
// and 100 of a graph. One p for all of them drew 0.24 stacks of the 300.
TEST(Strata, ABurstOfOtherWorkAfterAFloodGetsStacks) {
  Simulation sim({.per_thread = 200, .per_process = 1000, .process_bytes = 0, .seed = 10});
  ThreadSampler thread{};
  Estimate flood, kernel, graph;
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 20'000; ++i, sim.now += 4'000) flood.launch(thread, sim, kernel_key(0));
    for (int i = 0; i < 300; ++i, sim.now += 4'000) kernel.launch(thread, sim, kernel_key(1));
    for (int i = 0; i < 100; ++i, sim.now += 4'000) {
      graph.launch(thread, sim, stratum_key(2, 1, 0x5581'2000'0000));
    }
    if (round == 0) {  // new work begins at p = 1
      EXPECT_GE(kernel.drawn, 20);
      EXPECT_GE(graph.drawn, 20);
    }
  }
  // Three strata share 200/s evenly; a round takes 82 ms.
  EXPECT_GE(kernel.drawn, 50 * 4);
  EXPECT_GE(graph.drawn, 50 * 4);
  for (const Estimate* e : {&flood, &kernel, &graph}) {
    EXPECT_NEAR(e->error(), 0, e->allowed());
  }
  const double seconds = 50 * 20'400 * 4e-6;
  EXPECT_LT((flood.drawn + kernel.drawn + graph.drawn) / seconds, 400);
}

// Rates from 100k/s to a few a second, each kernel's changing 100-fold at its own times, launches
// in bursts; of every kernel, and of the first five places of its bursts, Σ weight is the truth.
class ManyKernels : public ::testing::TestWithParam<uint64_t> {};

TEST_P(ManyKernels, EveryKernelIsUnbiased) {
  Simulation sim({.per_thread = 200, .per_process = 1000, .process_bytes = 0, .seed = GetParam()});
  ThreadSampler thread{};
  constexpr size_t kKernels = 60;
  std::array<Estimate, kKernels> kernels{}, first_places{};
  uint64_t random = GetParam();
  for (int step = 0; step < 300'000; ++step) {  // 30 s
    sim.now += 100'000;
    for (size_t k = 0; k < kKernels; ++k) {
      const bool fast = (static_cast<uint64_t>(step) / (3'000 + 100 * k)) % 2 == 1;
      // Bursts of 20, one in `every` steps: 200k/s for the first when fast, a hundredth when not.
      const uint64_t every = (uint64_t{1} << (k / 4)) * (fast ? 1 : 100);
      if (splitmix(random) % every != 0) continue;
      for (int place = 0; place < 20; ++place) {
        (place < 5 ? first_places : kernels)[k].launch(thread, sim, kernel_key(k));
      }
    }
  }
  double drawn = 0, chi = 0;
  for (size_t k = 0; k < kKernels; ++k) {
    for (const Estimate& e : {kernels[k], first_places[k]}) {
      EXPECT_NEAR(e.error(), 0, e.allowed()) << "kernel " << k << " of " << e.launches;
      EXPECT_GE(e.drawn, std::min(e.launches, 8.0)) << "kernel " << k;
      if (e.variance > 0) chi += e.error() * e.error() / e.variance;
      drawn += e.drawn;
    }
  }
  EXPECT_LT(chi, 2 * kKernels + 5 * std::sqrt(4.0 * kKernels));
  EXPECT_LT(drawn / 30, 600);
}

INSTANTIATE_TEST_SUITE_P(Seeds, ManyKernels, ::testing::Values(1, 2, 3, 4, 5));

TEST(Strata, ShareTheThreadsRate) {
  Simulation sim({.per_thread = 200, .per_process = 1000, .process_bytes = 0, .seed = 11});
  ThreadSampler thread{};
  std::array<Estimate, 20> kernels{};
  for (int i = 0; i < 1'000'000; ++i) {  // 20 s at 50k/s
    sim.now += 20'000;
    const auto k = static_cast<size_t>(i % 20);
    kernels[k].launch(thread, sim, kernel_key(k));
    if (i == 50'000) kernels = {};  // the first second begins at p = 1
  }
  double drawn = 0;
  for (const Estimate& e : kernels) {
    drawn += e.drawn;
    EXPECT_NEAR(e.drawn / 19, 10, 3);
  }
  EXPECT_NEAR(drawn / 19, 200, 20);
}

TEST(Strata, LeaveToOthersWhatTheyDoNotNeed) {
  Simulation sim({.per_thread = 200, .per_process = 1000, .process_bytes = 0, .seed = 12});
  ThreadSampler thread{};
  Estimate hot, rare;
  for (int i = 0; i < 1'000'000; ++i) {
    sim.now += 20'000;
    hot.launch(thread, sim, kernel_key(0));
    // Ten others, each 5 times a second.
    if (i % 1'000 == 0)
      rare.launch(thread, sim, kernel_key(1 + static_cast<uint64_t>(i) / 1'000 % 10));
    if (i == 50'000) hot = rare = {};  // the first second begins at p = 1
  }
  EXPECT_EQ(rare.drawn, rare.launches);
  EXPECT_NEAR(hot.drawn / 19, 150, 25);
}

// Keys that look at the same strata.
uint64_t same_place(uint64_t k) { return (0x1'0002 * (k + 1)) << 32; }

// Forty hot keys for eight strata: they share, and none starts at p = 1 again.
TEST(Strata, KeysThatCollideShareAndStayUnbiased) {
  Simulation sim({.per_thread = 200, .per_process = 1000, .process_bytes = 0, .seed = 13});
  ThreadSampler thread{};
  std::array<Estimate, 40> kernels{};
  uint64_t random = 13;
  double first_second = 0, drawn = 0;
  for (int i = 0; i < 1'000'000; ++i) {
    sim.now += 20'000;
    // Rates in the ratio 1 : 2 : ... : 40.
    const uint64_t a = splitmix(random) % 40, b = splitmix(random) % 41;
    const uint64_t k = b <= a ? a : 39 - a;
    kernels[k].launch(thread, sim, same_place(k));
    if (i == 50'000) {
      for (const Estimate& e : kernels) first_second += e.drawn;
    }
  }
  for (const Estimate& e : kernels) {
    drawn += e.drawn;
    EXPECT_NEAR(e.error(), 0, e.allowed());
  }
  EXPECT_NEAR((drawn - first_second) / 19, 200, 40);
}

TEST(Strata, MoreKernelsThanStrataStayWithinTheBudget) {
  Simulation sim({.per_thread = 200, .per_process = 1000, .process_bytes = 0, .seed = 14});
  ThreadSampler thread{};
  Estimate all;
  for (int i = 0; i < 2'000'000; ++i) {
    sim.now += 10'000;
    all.launch(thread, sim, kernel_key(static_cast<uint64_t>(i) * 7919 % 1'000));
  }
  EXPECT_LT(all.drawn / 20, 500);
  EXPECT_NEAR(all.error(), 0, all.allowed());
}

TEST(Strata, AnIdleOneIsGivenToAnotherKeyAndABusyOneIsNot) {
  Simulation sim({.per_thread = 200, .per_process = 1000, .process_bytes = 0, .seed = 15});
  ThreadSampler thread{};
  Estimate hot;
  for (int i = 0; i < 400'000; ++i) {
    sim.now += 5'000;
    hot.launch(thread, sim, same_place(static_cast<uint64_t>(i) % 8));
  }
  Estimate another;
  for (int i = 0; i < 10; ++i) another.launch(thread, sim, same_place(16));
  EXPECT_LT(another.drawn, 5);  // shares a hot one's p
  sim.now += 2 * kStratumIdleNs;
  Estimate later;
  later.launch(thread, sim, same_place(17));
  for (int i = 0; i < 2; ++i) later.launch(thread, sim, same_place(18));
  EXPECT_EQ(later.drawn, 3);
}

TEST(Strata, KeysDifferByKindContextAndWork) {
  std::set<uint64_t> tops;
  size_t n = 0;
  for (uint32_t kind = 0; kind < 4; ++kind) {
    for (uint32_t context = 1; context < 9; ++context) {
      for (uint64_t work = 0; work < 200; ++work, ++n) {
        tops.insert(stratum_key(kind, context, 0x7f12'3456'7000 + work * 64) >> 32 | 1);
      }
    }
  }
  EXPECT_GE(tops.size(), n - 5);  // 31 bits: 0.01 expected to coincide
  // Handles at any spacing spread over the table: of sixty keys hardly any has to share.
  for (const uint64_t spacing : {16, 64, 96, 0x70, 0x2c0, 0x1000, 0x10000, 0x200000}) {
    ThreadSampler thread{};
    std::set<const ThreadSampler::Stratum*> strata;
    for (uint64_t i = 0; i < 60; ++i) {
      strata.insert(&thread.find(stratum_key(1, 1, 0x5581'2000'0000 + i * spacing)));
    }
    EXPECT_GE(strata.size(), 56u) << spacing;
  }
}

}  // namespace
}  // namespace gpuprof::shim

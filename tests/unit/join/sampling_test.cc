// SPDX-License-Identifier: Apache-2.0
//
// Is the estimate unbiased? A sampler like the shim's (geometric skips, p adapted to a budget every
// 100 ms, weight 1/p at the draw) against a known truth.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/unit/join/records.h"

namespace gpuprof::join {
namespace {

using namespace testing;

class Sampler {
 public:
  Sampler(uint64_t seed, double budget_per_s) : random_(seed), budget_per_s_(budget_per_s) {
    redraw();
  }

  // The weight of a drawn launch at `now_s`, or 0.
  double draw(double now_s) {
    ++seen_;
    if (now_s - period_start_s_ >= 0.1) {
      const double rate = static_cast<double>(seen_) / (now_s - period_start_s_);
      p_ = std::min(1.0, budget_per_s_ / rate);
      period_start_s_ = now_s;
      seen_ = 0;
      redraw();
    }
    if (skip_-- > 0) return 0;
    redraw();
    return 1 / p_;
  }
  [[nodiscard]] double p() const { return p_; }

 private:
  void redraw() { skip_ = p_ >= 1 ? 0 : std::geometric_distribution<int64_t>(p_)(random_); }

  std::mt19937_64 random_;
  double budget_per_s_;
  double p_ = 0.1;
  double period_start_s_ = 0;
  uint64_t seen_ = 0;
  int64_t skip_ = 0;
};

struct Truth {
  std::vector<double> time_ns, executions, time_variance, execution_variance;
  explicit Truth(size_t stacks)
      : time_ns(stacks + 1),
        executions(stacks + 1),
        time_variance(stacks + 1),
        execution_variance(stacks + 1) {}
};

class Simulation {
 public:
  Simulation(size_t stacks, uint64_t seed, double budget)
      : truth_(stacks), sampler_(seed, budget) {}

  void launch_one(double now_s, StackId stack, uint64_t name, uint64_t ns) {
    ++id_;
    joiner_.advance(static_cast<uint64_t>(now_s * 1e9) + 1);
    const double w = sampler_.draw(now_s);
    const double p = sampler_.p();
    if (w != 0) {
      ++samples_;
      joiner_.add_launch(kProcess, launch(id_, w), stack, 1);
    }
    add(joiner_, exec(id_, name, ns));
    const double t = static_cast<double>(ns);
    truth_.time_ns[stack] += t;
    truth_.executions[stack] += 1;
    // Var of a Horvitz-Thompson sum: Σ x² (1 − p)/p.
    truth_.time_variance[stack] += t * t * (1 - p) / p;
    truth_.execution_variance[stack] += (1 - p) / p;
  }

  // Every stack's share within 2 points and 4 standard errors of the truth, in both values.
  void check(uint64_t min_samples) {
    ASSERT_GE(samples_, min_samples);
    const JoinResult result = joiner_.finish_window();
    ASSERT_EQ(result.processes[0].window.check(), "");
    const auto sums = by_stack(result);
    compare("time", truth_.time_ns, truth_.time_variance, sums,
            [](const Sum& sum) { return static_cast<double>(sum.time_ns); });
    compare("executions", truth_.executions, truth_.execution_variance, sums,
            [](const Sum& sum) { return static_cast<double>(sum.executions); });
  }

 private:
  template <class ValueOf>
  void compare(const char* what, const std::vector<double>& truth,
               const std::vector<double>& variance, const std::map<StackId, Sum>& sums,
               ValueOf value_of) {
    double total = 0;
    double all_variance = 0;
    double estimated_total = 0;
    for (const double value : truth) total += value;
    for (const double value : variance) all_variance += value;
    for (const auto& [stack, sum] : sums) estimated_total += value_of(sum);
    ASSERT_EQ(estimated_total, total) << what;
    for (StackId stack = 1; stack < truth.size(); ++stack) {
      const double share = truth[stack] / total;
      const auto found = sums.find(stack);
      const double estimate = found == sums.end() ? 0 : value_of(found->second) / total;
      // Of a ratio of sums: (1 − s)² of the stack's own variance and s² of the others'.
      const double own = variance[stack];
      const double error =
          std::sqrt((1 - share) * (1 - share) * own + share * share * (all_variance - own)) / total;
      EXPECT_NEAR(estimate, share, 0.02) << what << " of stack " << stack;
      EXPECT_NEAR(estimate, share, 4 * error + 1e-9) << what << " of stack " << stack;
    }
  }

  Joiner joiner_;
  Truth truth_;
  Sampler sampler_;
  uint32_t id_ = 0;
  uint64_t samples_ = 0;
};

TEST(Sampling, RateThatChangesHundredfoldIsUnbiased) {
  // 10,000 launches/s, then 1,000,000/s, then back; stacks 1-3 prefer the slow phases, 4-6 the fast
  // one; p goes from 0.1 to 0.001.
  for (const uint64_t seed : {1u, 2u}) {
    Simulation simulation(6, seed, 1000);
    std::mt19937_64 random(seed + 100);
    double now_s = 0;
    for (int i = 0; i < 6'240'000; ++i) {
      const bool fast = i >= 120'000 && i < 6'120'000;
      now_s += fast ? 1e-6 : 1e-4;
      const bool prefers = random() % 10 < 8;
      const auto stack = static_cast<StackId>(1 + random() % 3 + (fast == prefers ? 3 : 0));
      simulation.launch_one(now_s, stack, 9, 1000 + random() % 100 * stack);
    }
    simulation.check(20'000);
  }
}

TEST(Sampling, PathsCorrelatedWithTheirPlaceInABurstAreUnbiased) {
  // Bursts of 50 launches in one order, always the same path at the same place: a fixed stride of
  // the sampler would see some paths only.
  for (const uint64_t seed : {1u, 2u, 3u}) {
    Simulation simulation(10, seed, 2000);
    double now_s = 0;
    for (int burst = 0; burst < 20'000; ++burst) {
      for (int place = 0; place < 50; ++place) {
        now_s += 2e-6;
        const auto stack = static_cast<StackId>(1 + place / 5);
        simulation.launch_one(now_s, stack, 9, 500 + 100 * stack);
      }
      now_s += 4e-4;
    }
    simulation.check(20'000);
  }
}

TEST(Sampling, OneKernelWithAnotherGridFromAnotherPathKeepsItsTime) {
  // Both paths launch the kernel equally often; it runs 50 times longer from stack 2.
  Simulation simulation(2, 7, 2000);
  std::mt19937_64 random(8);
  double now_s = 0;
  for (int i = 0; i < 500'000; ++i) {
    now_s += 2e-5;
    const auto stack = static_cast<StackId>(1 + random() % 2);
    simulation.launch_one(now_s, stack, 9, stack == 2 ? 50'000 : 1000);
  }
  simulation.check(19'000);
}

}  // namespace
}  // namespace gpuprof::join

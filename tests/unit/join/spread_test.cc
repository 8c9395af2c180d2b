// SPDX-License-Identifier: Apache-2.0
#include "daemon/join/spread.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

namespace gpuprof::join {
namespace {

std::vector<uint64_t> shares_of(uint64_t total, const std::vector<uint64_t>& weights) {
  std::vector<uint64_t> shares(weights.size());
  apportion(total, weights, shares, {});
  return shares;
}

TEST(Apportion, LargestRemaindersRoundUp) {
  // 10 × (5, 3, 1)/9 = 5.56, 3.33, 1.11
  EXPECT_EQ(shares_of(10, {5, 3, 1}), (std::vector<uint64_t>{6, 3, 1}));
  EXPECT_EQ(shares_of(1, {1, 1, 1}), (std::vector<uint64_t>{1, 0, 0}));
  EXPECT_EQ(shares_of(0, {1, 2}), (std::vector<uint64_t>{0, 0}));
  EXPECT_EQ(shares_of(7, {0, 1, 0}), (std::vector<uint64_t>{0, 7, 0}));
}

TEST(Apportion, SumIsExactAndEveryShareWithinOne) {
  std::mt19937_64 random(20261129);
  for (int round = 0; round < 2000; ++round) {
    std::vector<uint64_t> weights(1 + random() % 50);
    const int shift = static_cast<int>(random() % 56);
    for (uint64_t& weight : weights) weight = (random() >> 8) >> shift;
    if (std::accumulate(weights.begin(), weights.end(), uint64_t{0}) == 0) weights[0] = 1;
    const uint64_t total = random() >> (1 + random() % 60);
    const std::vector<uint64_t> shares = shares_of(total, weights);
    ASSERT_EQ(std::accumulate(shares.begin(), shares.end(), uint64_t{0}), total);
    long double sum = 0;
    for (const uint64_t weight : weights) sum += static_cast<long double>(weight);
    for (size_t i = 0; i < weights.size(); ++i) {
      const long double ideal =
          static_cast<long double>(total) * static_cast<long double>(weights[i]) / sum;
      // One, and what 64 bits of mantissa cannot hold. (ASSERT_NEAR would round to double.)
      ASSERT_LE(std::fabs(static_cast<long double>(shares[i]) - ideal), 1.0L + ideal * 1e-18L);
    }
  }
}

TEST(Apportion, CarryKeepsManySmallTotalsFair) {
  const std::vector<uint64_t> weights{50, 30, 20};
  std::vector<double> carry(3);
  std::vector<uint64_t> sums(3);
  for (int i = 0; i < 1000; ++i) {
    std::vector<uint64_t> shares(3);
    apportion(1, weights, shares, carry);
    for (size_t s = 0; s < 3; ++s) sums[s] += shares[s];
  }
  // Without the carry the first would take all 1,000.
  EXPECT_NEAR(static_cast<double>(sums[0]), 500, 1);
  EXPECT_NEAR(static_cast<double>(sums[1]), 300, 1);
  EXPECT_NEAR(static_cast<double>(sums[2]), 200, 1);
  EXPECT_EQ(sums[0] + sums[1] + sums[2], 1000u);
}

TEST(WeightSum, CountsResidualsAndNeverLessThanOne) {
  WeightSum sum;
  sum.add_launch(uint64_t{5} << 31);  // 2.5
  sum.add_launch(0);                  // forged: below 1.0
  sum.add_time(uint64_t{5} << 31, 100);
  sum.add_time(0, 100);
  EXPECT_EQ(sum.total_q16, (uint64_t{7} << 16) / 2);
  EXPECT_EQ(sum.residual_q16, (uint64_t{3} << 16) / 2);
  EXPECT_EQ(sum.total_ns, 350.0);
  EXPECT_EQ(sum.residual_ns, 150.0);
}

TEST(WeightSum, SaturatesUnderForgedWeights) {
  WeightSum sum;
  for (int i = 0; i < 1000; ++i) sum.add_launch(UINT64_MAX);
  EXPECT_EQ(sum.total_q16, WeightSum::kMax);
  const std::vector<uint64_t> weights(1000, WeightSum::kMax);
  const std::vector<uint64_t> shares = shares_of(uint64_t{1} << 63, weights);
  EXPECT_EQ(std::accumulate(shares.begin(), shares.end(), uint64_t{0}), uint64_t{1} << 63);
}

TEST(SpreadingWeights, FallBackToTotalsOnlyWhereNoResidualIs) {
  WeightSum one;
  one.add_launch(uint64_t{1} << 32);
  one.add_time(uint64_t{1} << 32, 300);
  WeightSum two;
  two.add_launch(uint64_t{2} << 32);
  two.add_time(uint64_t{2} << 32, 50);
  constexpr uint64_t kOne = uint64_t{1} << 48;
  EXPECT_EQ(execution_weights(std::vector{one, two}), (std::vector<uint64_t>{0, 1u << 16}));
  EXPECT_EQ(time_weights(std::vector{one, two}), (std::vector<uint64_t>{0, kOne}));
  EXPECT_EQ(execution_weights(std::vector{one, one}), (std::vector<uint64_t>{1u << 16, 1u << 16}));
  EXPECT_EQ(time_weights(std::vector{one, one}), (std::vector<uint64_t>{kOne, kOne}));
}

TEST(SpreadingWeights, WithoutTimeTheExecutionsDecide) {
  WeightSum sum;
  sum.add_launch(uint64_t{3} << 32);
  sum.add_time(uint64_t{3} << 32, 0);
  EXPECT_EQ(time_weights(std::vector{sum, sum}), (std::vector<uint64_t>{2u << 16, 2u << 16}));
}

TEST(Apportion, WeightlessIsEven) {
  EXPECT_EQ(shares_of(5, {0, 0}), (std::vector<uint64_t>{3, 2}));
  EXPECT_EQ(shares_of(5, {}), (std::vector<uint64_t>{}));
}

}  // namespace
}  // namespace gpuprof::join

// SPDX-License-Identifier: Apache-2.0
#include "daemon/join/spread.h"

#include <algorithm>
#include <numeric>

namespace gpuprof::join {
namespace {

__extension__ typedef unsigned __int128 uint128;

}  // namespace

void WeightSum::add_launch(uint64_t weight_q32) {
  constexpr uint64_t kOneQ16 = uint64_t{1} << 16;
  const uint64_t weight = std::max(weight_q32 >> 16, kOneQ16);
  total_q16 = std::min(total_q16 + weight, kMax);
  residual_q16 = std::min(residual_q16 + (weight - kOneQ16), kMax);
}

void WeightSum::add_time(uint64_t weight_q32, uint64_t time_ns) {
  const double weight = std::max(static_cast<double>(weight_q32) / 4294967296.0, 1.0);
  total_ns += weight * static_cast<double>(time_ns);
  residual_ns += (weight - 1.0) * static_cast<double>(time_ns);
}

std::vector<uint64_t> execution_weights(std::span<const WeightSum> sums) {
  const bool has_residual = std::any_of(sums.begin(), sums.end(),
                                        [](const WeightSum& sum) { return sum.residual_q16 != 0; });
  std::vector<uint64_t> weights;
  weights.reserve(sums.size());
  for (const WeightSum& sum : sums) {
    weights.push_back(has_residual ? sum.residual_q16 : sum.total_q16);
  }
  return weights;
}

std::vector<uint64_t> time_weights(std::span<const WeightSum> sums) {
  double max_residual = 0;
  double max_total = 0;
  for (const WeightSum& sum : sums) {
    max_residual = std::max(max_residual, sum.residual_ns);
    max_total = std::max(max_total, sum.total_ns);
  }
  const double max = max_residual > 0 ? max_residual : max_total;
  if (max <= 0) return execution_weights(sums);
  constexpr double kScale = 281474976710656.0;  // 2^48
  std::vector<uint64_t> weights;
  weights.reserve(sums.size());
  for (const WeightSum& sum : sums) {
    const double value = max_residual > 0 ? sum.residual_ns : sum.total_ns;
    weights.push_back(static_cast<uint64_t>(value / max * kScale));
  }
  return weights;
}

void apportion(uint64_t total, std::span<const uint64_t> weights, std::span<uint64_t> shares,
               std::span<double> carry) {
  uint128 sum = 0;
  for (const uint64_t weight : weights) sum += weight;
  if (sum == 0) {
    const std::vector<uint64_t> equal(weights.size(), 1);
    if (!weights.empty()) apportion(total, equal, shares, carry);
    return;
  }
  std::vector<double> score(weights.size());
  uint64_t given = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const uint128 product = uint128{total} * weights[i];
    shares[i] = static_cast<uint64_t>(product / sum);
    score[i] = static_cast<double>(product % sum) / static_cast<double>(sum);
    if (!carry.empty()) score[i] += carry[i];
    given += shares[i];
  }
  const uint64_t left = total - given;  // fewer than the number of non-zero weights
  if (left != 0) {
    std::vector<uint32_t> order;
    order.reserve(weights.size());
    for (uint32_t i = 0; i < weights.size(); ++i) {
      if (weights[i] != 0) order.push_back(i);
    }
    const auto by_score = [&](uint32_t a, uint32_t b) {
      return score[a] != score[b] ? score[a] > score[b] : a < b;
    };
    const auto cut = order.begin() + static_cast<ptrdiff_t>(left);
    if (cut != order.end()) std::nth_element(order.begin(), cut, order.end(), by_score);
    for (auto at = order.begin(); at != cut; ++at) {
      ++shares[*at];
      score[*at] -= 1.0;
    }
  }
  if (!carry.empty()) std::copy(score.begin(), score.end(), carry.begin());
}

}  // namespace gpuprof::join

// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_cuda/pc_spread.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace fakecuda {
namespace {

using Counts = std::vector<uint64_t>;

/// A kernel with these weights, of which every third sample, rounded down, is not issued.
class Kernel {
 public:
  explicit Kernel(const Counts& weights) {
    for (const uint64_t weight : weights) {
      code_.total_weight += weight;
      pcs_.push_back({0, 0, static_cast<uint32_t>(weight), static_cast<uint32_t>(weight / 3),
                      code_.total_weight});
    }
    code_.pcs = pcs_.data();
    code_.pc_count = static_cast<uint32_t>(pcs_.size());
    code_.step = spread_step(code_.total_weight);
  }
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  [[nodiscard]] uint64_t turn() const { return code_.total_weight; }

  /// Samples [first, first + count) by instruction, and behind them those not issued.
  [[nodiscard]] Counts samples(uint64_t first, uint64_t count) const {
    Counts counts(pcs_.size() * 2);
    const auto deliver = [&](const SampledPc& pc, uint64_t all, uint64_t not_issued) {
      EXPECT_GT(all, 0u);
      const auto i = static_cast<size_t>(&pc - pcs_.data());
      counts[i] += all;
      counts[pcs_.size() + i] += not_issued;
    };
    PcSpread(code_).spread(first, count, deliver);
    return counts;
  }

 private:
  std::vector<SampledPc> pcs_;
  KernelCode code_{};
};

/// As recorded of a kernel: a few instructions have nearly all samples.
Counts heavy_weights() {
  Counts weights(500, 3);
  for (const size_t i : {0, 100, 250, 499}) weights[i] = 20'000 + i;
  return weights;
}

Counts with_not_issued(Counts weights) {
  const size_t count = weights.size();
  for (size_t i = 0; i < count; ++i) weights.push_back(weights[i] / 3);
  return weights;
}

TEST(PcSpread, AWholeTurnHasTheWeights) {
  for (const Counts& weights : {heavy_weights(), {6, 3, 1}, {1}, {2, 2}, {1, 0, 7}}) {
    const Kernel kernel(weights);
    for (const uint64_t first : {0, 1, 77, 123'456'789})
      EXPECT_EQ(kernel.samples(first, kernel.turn()), with_not_issued(weights));
  }
}

TEST(PcSpread, SamplesOneByOneAreThoseOfTheStretch) {
  for (const Counts& weights : {Counts{6, 3, 1}, {1}, {9, 12, 27, 4}, {1, 0, 7}, Counts(97, 1)}) {
    const Kernel kernel(weights);
    for (const uint64_t first : {0, 3, 50}) {
      for (uint64_t count = weights.size(); count < 3 * kernel.turn(); ++count) {
        Counts sum(weights.size() * 2);
        for (uint64_t i = first; i < first + count; ++i) {
          const Counts one = kernel.samples(i, 1);
          for (size_t k = 0; k < sum.size(); ++k) sum[k] += one[k];
        }
        ASSERT_EQ(kernel.samples(first, count), sum) << count << " from " << first;
      }
    }
  }
}

TEST(PcSpread, AnyStretchOfATurnIsSpreadLikeTheWhole) {
  const Counts weights = with_not_issued(heavy_weights());
  const Kernel kernel(heavy_weights());
  const uint64_t turn = kernel.turn();
  for (const uint64_t first : {uint64_t{0}, turn / 40, turn / 2, turn - 17}) {
    for (const uint64_t count : {turn / 40, turn / 10, turn / 2}) {
      const Counts counts = kernel.samples(first, count);
      for (size_t i = 0; i < weights.size(); ++i) {
        const double want = static_cast<double>(weights[i]) * static_cast<double>(count) /
                            static_cast<double>(turn);
        EXPECT_NEAR(static_cast<double>(counts[i]), want, 20) << i << " from " << first;
      }
    }
  }
}

TEST(PcSpread, LargeWeightsDoNotOverflow) {
  const uint64_t half = uint64_t{1} << 30;
  const Kernel kernel({half, half});
  const uint64_t count = (uint64_t{1} << 40) + 12'345;
  const Counts counts = kernel.samples(0, count);
  EXPECT_EQ(counts[0] + counts[1], count);
  EXPECT_NEAR(static_cast<double>(counts[0]), static_cast<double>(counts[1]), 20);
}

}  // namespace
}  // namespace fakecuda

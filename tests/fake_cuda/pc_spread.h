// SPDX-License-Identifier: Apache-2.0
// On which of its instructions a kernel's samples fall.
//
// As many samples as the weights' sum are a turn, in which each instruction gets its weight. A
// recording's turn is all of the recorded time, and what is sampled of it is rarely a whole one:
// sampling begins after the first launches. So any stretch of a turn has to be spread over the
// instructions like the whole: the samples go round the turn's places in steps near the golden
// ratio, which reach each place once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

#include "tests/fake_cuda/hooks.h"

namespace fakecuda {

/// From one sample's place to the next one's. `whole`: places of a turn, 1 to 2^31.
inline uint64_t spread_step(uint64_t whole) {
  uint64_t step = std::max<uint64_t>(whole * 618'034 / 1'000'000, 1);
  while (std::gcd(step, whole) != 1) --step;
  return step;
}

class PcSpread {
 public:
  explicit PcSpread(const KernelCode& code) : code_(code) {}

  /// Calls deliver(const SampledPc&, samples, those not issued) for samples [first, first + count)
  /// of the kernel; more than once for an instruction, maybe, but not without samples.
  template <typename Deliver>
  void spread(uint64_t first, uint64_t count, Deliver deliver) const {
    if (count < code_.pc_count) {
      for (uint64_t i = first; i < first + count; ++i) one(place(i), deliver);
      return;
    }
    const Stretch stretch = stretch_of(first, count);
    for (uint32_t i = 0; i < code_.pc_count; ++i) {
      const SampledPc& pc = code_.pcs[i];
      const uint64_t from = pc.end - pc.weight;
      const uint64_t before = below(stretch, from);
      const uint64_t all = below(stretch, pc.end) - before;
      if (all != 0) deliver(pc, all, below(stretch, from + pc.not_issued) - before);
    }
  }

 private:
  /// Samples [first, first + count) as the beginnings of turns that they end and begin in.
  struct Stretch {
    uint64_t turns;              // from the one to the other
    uint64_t first, last;        // samples before it in its turn, and of the last turn
    uint64_t at_first, at_last;  // floor_sum of them
  };

  [[nodiscard]] uint64_t whole() const { return code_.total_weight; }

  [[nodiscard]] uint64_t place(uint64_t sample) const {
    return sample % whole() * code_.step % whole();
  }

  template <typename Deliver>
  void one(uint64_t place, Deliver& deliver) const {
    const SampledPc* pc = std::upper_bound(
        code_.pcs, code_.pcs + code_.pc_count, place,
        [](uint64_t at, const SampledPc& candidate) { return at < candidate.end; });
    const uint64_t from = pc->end - pc->weight;
    deliver(*pc, 1, place < from + pc->not_issued ? 1 : 0);
  }

  [[nodiscard]] Stretch stretch_of(uint64_t first, uint64_t count) const {
    Stretch stretch{};
    stretch.turns = (first + count) / whole() - first / whole();
    stretch.first = first % whole();
    stretch.last = (first + count) % whole();
    stretch.at_first = floor_sum(stretch.first, 0);
    stretch.at_last = floor_sum(stretch.last, 0);
    return stretch;
  }

  /// Those of the stretch on places below `edge`.
  [[nodiscard]] uint64_t below(const Stretch& stretch, uint64_t edge) const {
    return stretch.turns * edge + below(stretch.last, stretch.at_last, edge) -
           below(stretch.first, stretch.at_first, edge);
  }

  /// Of a turn's first samples: place / whole rounded down is 0 for each, (place + whole - edge) /
  /// whole is 1 where the place is not below the edge.
  [[nodiscard]] uint64_t below(uint64_t samples, uint64_t sum, uint64_t edge) const {
    return samples - (floor_sum(samples, whole() - edge) - sum);
  }

  /// Sum of (step * i + more) / whole rounded down, for i from 0 to n - 1, modulo 2^64: Euclid's
  /// algorithm on the lattice points below a line.
  [[nodiscard]] uint64_t floor_sum(uint64_t n, uint64_t more) const {
    uint64_t sum = 0;
    uint64_t step = code_.step;
    uint64_t divisor = whole();
    while (n > 0) {
      sum += n * (n - 1) / 2 * (step / divisor) + n * (more / divisor);
      step %= divisor;
      more %= divisor;
      const uint64_t top = step * n + more;
      n = top / divisor;
      more = top % divisor;
      std::swap(step, divisor);
    }
    return sum;
  }

  const KernelCode& code_;
};

}  // namespace fakecuda

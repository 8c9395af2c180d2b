// SPDX-License-Identifier: Apache-2.0
//
// Spreading whole numbers by weight, exactly.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace gpuprof::join {

// The sampled launches of one (key, stack, thread). A launch of weight w stands for itself,
// exactly, and for w − 1 others: Σ (w − 1) is how many executions without a stack are the stack's,
// and Σ (w − 1)·t, t being the sampled executions' own time, how much time (ADR 0001).
struct WeightSum {
  // Counts are 48.16 fixed point and saturate here: the sum over a table times 64 bits must stay
  // below 128 bits, whatever weights a target forges.
  static constexpr uint64_t kMax = uint64_t{1} << 56;

  uint64_t total_q16 = 0;
  uint64_t residual_q16 = 0;
  double total_ns = 0;
  double residual_ns = 0;

  // A launch executed (once a launch). `weight_q32` below 1.0 counts as 1.0.
  void add_launch(uint64_t weight_q32);
  // One of its executions (each).
  void add_time(uint64_t weight_q32, uint64_t time_ns);
};

// By what executions and time without a stack are spread over the stacks of a key. Residual sums;
// total ones where all residual ones are zero.
std::vector<uint64_t> execution_weights(std::span<const WeightSum> sums);
// Scaled to 2^48 for the largest. Where no time was sampled: as the executions.
std::vector<uint64_t> time_weights(std::span<const WeightSum> sums);

// Splits `total` in proportion to `weights` (all zero: evenly): shares[i] is total·w/Σw rounded
// down or up, and the shares' sum is `total`. The largest remainders are rounded up; a tie goes to
// the lower index. `carry`, where not empty, holds by how much each share of earlier calls was
// rounded short, and is updated: many small totals then come out right in the sum.
void apportion(uint64_t total, std::span<const uint64_t> weights, std::span<uint64_t> shares,
               std::span<double> carry);

}  // namespace gpuprof::join

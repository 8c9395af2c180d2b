// SPDX-License-Identifier: Apache-2.0
// Ground truth of PC sampling: samples by (call path, kernel, instruction, stall, mode, device).
#pragma once

#include <cstdint>
#include <cstdio>

#include "tests/fake_cuda/cupti/pc_sampler.h"

namespace fakecuda {

struct PcTruthKey {
  const char* label;
  const KernelCode* code;
  uint32_t offset;
  uint32_t stall;
  uint32_t mode;
  uint32_t device;
  auto operator<=>(const PcTruthKey&) const = default;
};

/// With pc_mutex() held. The row stays where it is for ever.
PcTruth& pc_truth(const PcTruthKey& key);

/// The member "pc" of the truth.
void write_pc_truth(FILE* out);

}  // namespace fakecuda

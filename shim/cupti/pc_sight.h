// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "shim/cupti/callback_ids.h"
#include "shim/cupti/vendor.h"

namespace gpuprof::cupti {

/// What forbids the serialized tier once it was seen in the process, as bits.
enum PcSight : uint32_t {
  /// A CUDA graph: its kernels share one correlation id, and CUPTI gives no samples of them.
  kSawGraph = 1,
  /// A cooperative launch, which may span GPUs that wait for each other.
  kSawCooperative = 2,
  /// A kernel that waits for other ranks. Running one at a time beside its likes, in an order of
  /// this process's own, two ranks could wait for each other for ever.
  kSawCollective = 4,
};

/// Whether a kernel of this (mangled) name waits for other ranks: NCCL's and NVSHMEM's, and a few
/// that are known to spin on a peer's memory. A name says no more than that: a kernel of the
/// application's own that waits for a peer cannot be told.
bool is_collective(const char* name) noexcept;

/// What a launch is, as its ENTER callback shows it: one bit of PcSight, or 0.
uint32_t sight_of_launch(Domain domain, uint32_t id, Call call,
                         const CUpti_CallbackData& data) noexcept;

/// What an activity record's launch type and name show.
uint32_t sight_of_kernel(uint8_t launch_type, uint32_t graph_id) noexcept;

}  // namespace gpuprof::cupti

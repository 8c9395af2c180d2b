// SPDX-License-Identifier: Apache-2.0
// Which process samples a GPU: one at a time (measured on an H200, docs/hardware.md).
#pragma once

#include <cstdint>

namespace fakecuda {

/// True if no other process samples this process's `device`; this one does from now on, until
/// release_gpu() or its end. Only processes with one FAKE_CUDA_GPU_LOCKS know of each other;
/// without it the answer is always true. With pc_mutex() held.
bool acquire_gpu(uint32_t device);
void release_gpu(uint32_t device);

}  // namespace fakecuda

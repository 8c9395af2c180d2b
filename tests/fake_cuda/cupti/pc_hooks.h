// SPDX-License-Identifier: Apache-2.0
// What the driver's events mean for PC sampling.
#pragma once

#include "tests/fake_cuda/hooks.h"

namespace fakecuda {

/// CUPTI's own 32-bit key of a cubin. (The real one is not documented; any function of the bytes.)
uint64_t own_crc(const char* image, size_t size);

/// A launch of the calling thread returns.
void pc_launched(CUcontext context);
/// Whether another thread was the last one to launch in `context`, less than half a second ago.
bool pc_launched_elsewhere(CUcontext context);

void pc_execution(const Execution& work);
void pc_module_loaded(uint32_t module_id, uint64_t crc);
void pc_module_unloading(uint32_t module_id);
void pc_context_destroyed(CUcontext context);

}  // namespace fakecuda

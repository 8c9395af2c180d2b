// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpuprof::cupti {

/// All of InitializeInjection: finds CUPTI, sets the shim up, arms if it was asked to. Called by
/// libcuda inside cuInit, on an application's thread, once. Whatever goes wrong is one line on
/// stderr and the status page, and the process runs unprofiled. Always answers 1, which libcuda
/// wants.
int initialize() noexcept;

}  // namespace gpuprof::cupti

// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpuprof::cupti {

/// Loads libnvperf_host.so from the folder of the libcupti that `cupti_function` belongs to, if it
/// is there and none is mapped.
///
/// libcupti has no RPATH and opens it by its bare name, which the loader finds only where its
/// folder is on the search path; a copy that is mapped answers that open, since its SONAME is the
/// bare name. PC sampling needs it: without it there are no stall reasons, and a client without
/// this step has no sample (H200, CUPTI 13.0.1, docs/hardware.md). Slimmed images lack it; tracing
/// does not need it. Service thread: it runs the loader.
void preload_perfworks(const void* cupti_function) noexcept;

}  // namespace gpuprof::cupti

// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpuprof::cupti {

/// Loads libnvperf_host.so from the folder of the libcupti that `cupti_function` belongs to, if it
/// is there and none is mapped.
///
/// libcupti has no RPATH and opens it by its bare name, which the loader finds only where its
/// folder is on the search path; a copy that is mapped answers that open, since its SONAME is the
/// bare name. Whether PC sampling proper needs it is not proven (profiling and hardware tracing
/// do), and slimmed images lack it: its absence is no error. Service thread: it runs the loader.
void preload_perfworks(const void* cupti_function) noexcept;

}  // namespace gpuprof::cupti

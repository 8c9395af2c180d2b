// SPDX-License-Identifier: Apache-2.0
//
// The commands of gpu-profiled.
#pragma once

#include "daemon/cli/console.h"
#include "daemon/cli/limits.h"
#include "daemon/cli/options.h"

namespace gpuprof::cli {

// Each returns the exit status of the program (exit_code.h).
int main_command(int argc, const char* const* argv);
int attach_command(const Options& options, Console& console);
int cubin_command(const Options& options, Console& console);
int doctor_command(const Options& options, Console& console);
int node_command(const Options& options, Console& console);
int run_command(const Options& options, const InheritedLimits& limits, Console& console);

// What to tell where a std::bad_alloc came through: nothing of ours allocates without bound.
inline constexpr const char* kOutOfMemory =
    "out of memory, the profile is lost: free some, or raise the limit (ulimit -v, the "
    "container's)";

}  // namespace gpuprof::cli

// SPDX-License-Identifier: Apache-2.0
//
// The commands of gpu-profiled.
#pragma once

#include "daemon/cli/console.h"
#include "daemon/cli/options.h"

namespace gpuprof::cli {

// Each returns the exit status of the program (exit_code.h).
int main_command(int argc, const char* const* argv);
int attach_command(const Options& options, Console& console);
int cubin_command(const Options& options, Console& console);
int run_command(const Options& options, Console& console);

}  // namespace gpuprof::cli

// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/command_line.h"

#include <cstdio>

#include "daemon/cli/exit_code.h"

namespace gpuprof::cli {

int main_command(int argc, const char* const* argv) {
  Console console;
  auto options = parse_options(argc, argv);
  if (!options) {
    console.line(options.error().message + " (gpu-profiled --help lists the options)");
    return kExitUsage;
  }
  switch (options->action) {
    case Options::Action::kPrint:
      return std::fputs(options->text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0
                 ? 0
                 : kExitFailure;
    case Options::Action::kRun:
      return run_command(*options, console);
    case Options::Action::kCubinResolve:
    case Options::Action::kCubinInfo:
      return cubin_command(*options, console);
    case Options::Action::kAttach:
      break;
  }
  return attach_command(*options, console);
}

}  // namespace gpuprof::cli

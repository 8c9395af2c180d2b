// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/command_line.h"

#include <cstdio>
#include <new>

#include "daemon/cli/exit_code.h"

namespace gpuprof::cli {

namespace {

int carry_out(int argc, const char* const* argv, Console& console) {
  const auto limits = InheritedLimits::raise();
  if (!limits) {
    console.line(limits.error().message);
    return kExitFailure;
  }
  reserve_stack();
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
      return run_command(*options, *limits, console);
    case Options::Action::kCubinResolve:
    case Options::Action::kCubinInfo:
      return cubin_command(*options, console);
    case Options::Action::kDoctor:
      return doctor_command(*options, console);
    case Options::Action::kNode:
      return node_command(*options, console);
    case Options::Action::kAttach:
      break;
  }
  return attach_command(*options, console);
}

}  // namespace

int main_command(int argc, const char* const* argv) {
  Console console;
  try {
    return carry_out(argc, argv, console);
  } catch (const std::bad_alloc&) {
    console.line(kOutOfMemory);
    return kExitFailure;
  }
}

}  // namespace gpuprof::cli

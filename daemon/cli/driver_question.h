// SPDX-License-Identifier: Apache-2.0
//
// Asks a libcuda what it is, in a process of its own.
#pragma once

#include <signal.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "daemon/base/result.h"
#include "daemon/cli/environment.h"
#include "daemon/cli/invoker.h"
#include "daemon/cli/limits.h"

namespace gpuprof::cli {

// What a libcuda answered. Everything in it may be a lie of that file.
struct DriverAnswer {
  uint32_t version = 0;     // cuDriverGetVersion, 1000 to 999990
  std::string path;         // as the loader took it, printable
  std::optional<int> init;  // cuInit's answer, where it was asked
};

// How the asking process shall run: as the command will.
struct AskAs {
  Environment environment;
  Invoker invoker;
  sigset_t mask = {};
  InheritedLimits limits;
};

// A libcuda that is loaded may run anything, so it is loaded as the command's user, in an
// environment without injection and preloads, and killed after `patience`, with what it started
// left alone. `library` is a path, or a name for the loader to find. cuInit is called too where the
// version is above `bound`. kNotFound: it does not load, with the loader's words; kUnavailable: no
// answer.
Result<DriverAnswer> ask_driver(const std::string& library, uint32_t bound, const AskAs& as,
                                std::chrono::milliseconds patience);

// The lines of daemon/asker/asker.c.
Result<DriverAnswer> parse_answer(std::string_view text);

}  // namespace gpuprof::cli

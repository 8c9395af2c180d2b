// SPDX-License-Identifier: Apache-2.0
//
// What run, --pid, --all and --cgroup have in common: how long they go on, and how they end.
#pragma once

#include <chrono>
#include <cstdint>

#include "daemon/base/result.h"
#include "daemon/cli/console.h"
#include "daemon/cli/options.h"
#include "daemon/cli/result_files.h"
#include "daemon/cli/session.h"
#include "daemon/cli/signals.h"

namespace gpuprof::cli {

inline constexpr std::chrono::milliseconds kTick{20};
// The shim flushes every 100 ms and looks at the control page 5 times a second; a target that does
// not launch cannot disarm before its next launch, and has nothing left to send either.
inline constexpr std::chrono::milliseconds kDisarmPatience{2000};

// Tells the error; `exit_code`.
int fail_with_line(Console& console, const Error& error, int exit_code);

// CLOCK_MONOTONIC; UINT64_MAX without --duration, which counts from now.
uint64_t deadline_of(const Options& options);

// Takes what signals there are: is one of them meant to end the run? Those of --yield are not.
bool is_interrupted(Signals& signals, Session& session);

// Of --pid, --all and --cgroup: disarms, and writes the profile, or says why there is none. The
// exit status.
int end_profile(Session& session, ResultFiles& files, Signals& signals, Console& console);

}  // namespace gpuprof::cli

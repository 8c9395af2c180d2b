// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/profile_run.h"

#include "daemon/base/clock.h"
#include "daemon/cli/exit_code.h"
#include "daemon/cli/target_rows.h"

namespace gpuprof::cli {

int fail_with_line(Console& console, const Error& error, int exit_code) {
  console.line(error.message);
  return exit_code;
}

uint64_t deadline_of(const Options& options) {
  return options.duration ? monotonic_ns() + static_cast<uint64_t>(options.duration->count())
                          : UINT64_MAX;
}

bool is_interrupted(Signals& signals, Session& session) {
  while (auto signal = signals.next()) {
    if (!session.heed(static_cast<int>(signal->ssi_signo))) return true;
  }
  return false;
}

int end_profile(Session& session, ResultFiles& files, Signals& signals, Console& console) {
  const join::JoinResult result =
      session.finish(kDisarmPatience, [&] { return is_interrupted(signals, session); });
  if (!result.rows.empty()) return files.write(session, result, console);
  if (!session.any_target())
    return fail_with_line(console,
                          {Code::kNoTarget, 0,
                           "no process with the shim was seen; no file written (gpu-profiled "
                           "doctor --pid PID tells why a process has none)"},
                          kExitNothingProfiled);
  if (auto why = session.why_nothing()) {
    tell_targets(session, result, console);
    const std::string text = why->empty() ? "nothing was profiled; no file written" : *why;
    return fail_with_line(console, {Code::kNoTarget, 0, text}, kExitNothingProfiled);
  }
  return files.write(session, result, console);
}

}  // namespace gpuprof::cli

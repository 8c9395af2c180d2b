// SPDX-License-Identifier: Apache-2.0
//
// gpu-profiled --all and --cgroup: processes of a node, those that start later too.
#include <unistd.h>

#include <string>

#include "daemon/base/clock.h"
#include "daemon/cli/command_line.h"
#include "daemon/cli/diagnose.h"
#include "daemon/cli/discovery.h"
#include "daemon/cli/exit_code.h"
#include "daemon/cli/profile_run.h"
#include "daemon/cli/progress.h"
#include "daemon/cli/result_files.h"
#include "daemon/cli/session.h"
#include "daemon/cli/signals.h"

namespace gpuprof::cli {
namespace {

std::string count_of(uint64_t number, const char* one, const char* many) {
  return std::to_string(number) + " " + (number == 1 ? one : many);
}

// Once all that was there has been looked at.
std::string found_line(const Session& session) {
  if (session.controlled().empty())
    return std::string(session.scope().all() ? "no process" : "no process of the cgroup") +
           " runs the shim yet: waiting for those that are started with CUDA_INJECTION64_PATH";
  return "profiling " + count_of(session.controlled().size(), "process", "processes") + " with " +
         count_of(session.node().files, "shim file", "shim files") + ", and those that start";
}

void run_until_ended(Session& session, Discovery& discovery, ResultFiles& files, Signals& signals,
                     Console& console) {
  Progress progress(session, console);
  const uint64_t deadline = deadline_of(session.options());
  bool told = false;
  while (monotonic_ns() < deadline && !is_interrupted(signals, session)) {
    session.tick(kTick);
    discovery.tick();
    if (discovery.looked_at_all() && !told) console.line(found_line(session));
    told = discovery.looked_at_all();
    progress.update();
    files.tick(session, console, [&] {
      discovery.tick();
      progress.update();
    });
  }
}

}  // namespace

int node_command(const Options& options, Console& console) {
  auto signals = Signals::create();
  if (!signals) return fail_with_line(console, signals.error(), kExitFailure);
  if (auto ok = check_capabilities(); !ok)
    return fail_with_line(console, ok.error(), kExitNothingProfiled);
  auto owner = Invoker::resolve({});
  if (!owner) return fail_with_line(console, owner.error(), exit_code_of(owner.error()));
  auto scope = Scope::create(options);
  if (!scope) return fail_with_line(console, scope.error(), exit_code_of(scope.error()));
  auto files = ResultFiles::open(options, *owner, scope->all() ? "all" : "cgroup",
                                 static_cast<uint32_t>(::getpid()));
  if (!files)
    return fail_with_line(console, files.error(),
                          files.error().code == Code::kInvalidArgument ? kExitUsage : kExitFailure);
  auto session = Session::create(options, console, std::move(*scope));
  if (!session) return fail_with_line(console, session.error(), exit_code_of(session.error()));
  if (auto ok = (*session)->watch_scope(); !ok)
    return fail_with_line(console, ok.error(), exit_code_of(ok.error()));
  if (auto ok = files->drop_privileges(**session, -1, console); !ok)
    return fail_with_line(console, ok.error(), kExitFailure);

  Discovery discovery(**session, console);
  run_until_ended(**session, discovery, *files, *signals, console);
  return end_profile(**session, *files, *signals, console);
}

}  // namespace gpuprof::cli

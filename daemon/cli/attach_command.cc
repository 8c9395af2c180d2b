// SPDX-License-Identifier: Apache-2.0
//
// gpu-profiled --pid: attach to running processes and their children.
#include <map>
#include <string>
#include <vector>

#include "daemon/base/clock.h"
#include "daemon/cli/command_line.h"
#include "daemon/cli/diagnose.h"
#include "daemon/cli/exit_code.h"
#include "daemon/cli/profile_run.h"
#include "daemon/cli/progress.h"
#include "daemon/cli/result_files.h"
#include "daemon/cli/session.h"
#include "daemon/cli/signals.h"
#include "daemon/probe/usdt_notes.h"
#include "daemon/target/process.h"
#include "daemon/target/shim_file.h"

namespace gpuprof::cli {
namespace {

struct Found {
  std::map<std::pair<dev_t, ino_t>, target::ShimFile> files;
  std::vector<ProcessId> with_shim;
  std::vector<ProcessId> roots;
};

// The shims in the named processes and in their children. A named process without a shim is fine
// where a child has one (torchrun, a shell); else it is told why and left out.
Result<Found> find_targets(const Options& options, Console& console) {
  Found out;
  Error last{Code::kNoTarget, 0, "nothing to profile"};
  auto look_at = [&](uint32_t pid) -> Status {
    auto id = target::process_id(pid);
    if (!id) return tl::unexpected<Error>(id.error());
    auto file = target::ShimFile::find(pid, probe::is_shim_file);
    if (!file && file.error().code == Code::kNoTarget)
      return tl::unexpected<Error>(diagnose_no_shim(pid));
    if (!file) return tl::unexpected<Error>(file.error());
    out.with_shim.push_back(*id);
    out.files.emplace(std::pair(file->device, file->inode), std::move(*file));
    return {};
  };
  std::vector<Error> failures;
  for (const uint32_t pid : options.pids) {
    if (const auto process = target::process_of_thread(pid)) {
      failures.push_back(thread_id_error(pid, *process));
      continue;
    }
    auto root = target::process_id(pid);
    if (!root) {
      failures.push_back(root.error());
      continue;
    }
    const size_t before = out.with_shim.size();
    auto own = look_at(pid);
    const std::vector<uint32_t> children = target::descendants(pid);
    // Those that use CUDA and have none are told by the session.
    for (const uint32_t child : children) (void)look_at(child).has_value();
    if (out.with_shim.size() == before) {
      failures.push_back(own.error().code == Code::kNoTarget ? diagnose_no_shim(pid, children)
                                                             : own.error());
    } else {
      out.roots.push_back(*root);
    }
  }
  if (out.with_shim.empty()) {
    for (size_t i = 0; i + 1 < failures.size(); ++i) console.line(failures[i].message);
    return tl::unexpected<Error>(failures.empty() ? last : failures.back());
  }
  for (const Error& failure : failures) console.line(failure.message);
  return out;
}

// Watches, attaches, arms. Fails only if not one process could be armed.
Status begin(Session& session, const Found& found, Console& console) {
  for (const ProcessId root : found.roots) {
    if (auto ok = session.watch(root); !ok) return ok;
  }
  for (const ProcessId process : found.with_shim) {
    if (auto ok = session.watch(process); !ok) return ok;
  }
  for (const auto& [key, file] : found.files) {
    if (auto ok = session.attach(file); !ok) return ok;
  }
  size_t armed = 0;
  std::vector<Error> failures;
  for (const ProcessId process : found.with_shim) {
    auto ok = session.adopt(process, {}, true);
    if (ok) {
      ++armed;
    } else {
      failures.push_back(ok.error());
    }
  }
  if (armed == 0) {
    for (size_t i = 0; i + 1 < failures.size(); ++i) console.line(failures[i].message);
    return tl::unexpected<Error>(failures.back());
  }
  for (const Error& failure : failures) console.line(failure.message);
  return {};
}

}  // namespace

int attach_command(const Options& options, Console& console) {
  auto signals = Signals::create();
  if (!signals) return fail_with_line(console, signals.error(), kExitFailure);
  if (auto ok = check_capabilities(); !ok)
    return fail_with_line(console, ok.error(), kExitNothingProfiled);
  if (auto ok = target::check_own_proc(); !ok)
    return fail_with_line(console, ok.error(), kExitNothingProfiled);
  auto owner = Invoker::resolve({});
  if (!owner) return fail_with_line(console, owner.error(), exit_code_of(owner.error()));
  auto found = find_targets(options, console);
  if (!found) return fail_with_line(console, found.error(), kExitNothingProfiled);
  const ProcessId first = found->with_shim.front();
  auto stat = target::process_stat(first.pid);
  auto files = ResultFiles::open(options, *owner, stat ? stat->comm : "process", first.pid);
  if (!files)
    return fail_with_line(console, files.error(),
                          files.error().code == Code::kInvalidArgument ? kExitUsage : kExitFailure);
  auto session = Session::create(options, console);
  if (!session) return fail_with_line(console, session.error(), exit_code_of(session.error()));
  if (auto ok = begin(**session, *found, console); !ok)
    return fail_with_line(console, ok.error(), kExitNothingProfiled);
  if (auto ok = files->drop_privileges(**session, -1, console); !ok)
    return fail_with_line(console, ok.error(), kExitFailure);

  Progress progress(**session, console);
  const uint64_t deadline = deadline_of(options);
  while ((*session)->any_alive() && monotonic_ns() < deadline &&
         !is_interrupted(*signals, **session)) {
    (*session)->tick(kTick);
    progress.update();
    files->tick(**session, console, [&] { progress.update(); });
  }
  return end_profile(**session, *files, *signals, console);
}

}  // namespace gpuprof::cli

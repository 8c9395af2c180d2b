// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/result_files.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

#include "daemon/base/clock.h"
#include "daemon/cli/capabilities.h"
#include "daemon/cli/debug_fetcher.h"
#include "daemon/cli/duration.h"
#include "daemon/cli/exit_code.h"
#include "daemon/cli/report.h"
#include "daemon/join/assemble.h"
#include "daemon/pprof/writer.h"

namespace gpuprof::cli {
namespace {

int64_t unix_ns() {
  timespec now = {};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

Result<ResultFiles> ResultFiles::open(const Options& options, const Invoker& owner,
                                      std::string_view comm, uint32_t pid) {
  ResultFiles out(owner);
  if (options.window) {
    auto windows = WindowFiles::open(options, owner, comm, pid);
    if (!windows) return tl::unexpected<Error>(windows.error());
    out.windows_ = std::move(*windows);
  } else if (auto ok = out.open_one(options, comm, pid); !ok) {
    return tl::unexpected<Error>(ok.error());
  }
  if (!options.save_cubins.empty()) {
    auto cubins = CubinFiles::open(options.save_cubins, owner);
    if (!cubins) return tl::unexpected<Error>(cubins.error());
    out.cubins_.emplace(std::move(*cubins));
  }
  return out;
}

Status ResultFiles::open_one(const Options& options, std::string_view comm, uint32_t pid) {
  const time_t now = ::time(nullptr);
  Result<std::string> name = options.output.empty()
                                 ? Result<std::string>(default_output_name(comm, pid, now))
                                 : expand_time(options.output, now);
  if (!name) return tl::unexpected<Error>(name.error());
  auto profile = OutputFile::open(
      *name, options.output.empty() ? OutputFile::Existing::kKeep : OutputFile::Existing::kReplace,
      owner_);
  if (!profile) return tl::unexpected<Error>(profile.error());
  profile_.emplace(std::move(*profile));
  if (options.summary_json.empty()) return {};
  auto json = OutputFile::open(options.summary_json, OutputFile::Existing::kReplace, owner_,
                               "--summary-json");
  if (!json) return tl::unexpected<Error>(json.error());
  if (json->is_same_place(*profile_))
    return fail(Code::kInvalidArgument, "-o and --summary-json name the same file: choose two");
  json_.emplace(std::move(*json));
  return {};
}

Status ResultFiles::drop_privileges(Session& session, pid_t command, Console& console) {
  auto fetcher = DebugFetcher::start(owner_, Environment::current());
  if (!fetcher) console.line(fetcher.error().message);
  if (fetcher && *fetcher) session.recorder().use_fetcher(std::move(*fetcher));
  std::vector<OutputFile*> files;
  if (profile_) files.push_back(&*profile_);
  if (json_) files.push_back(&*json_);
  auto deputy = Deputy::start(files, command, cubins_ ? &*cubins_ : nullptr);
  if (!deputy) return tl::unexpected<Error>(deputy.error());
  deputy_ = std::make_unique<Deputy>(std::move(*deputy));
  for (uint32_t i = 0; i < files.size(); ++i) files[i]->delegate(*deputy_, i);
  if (windows_) {
    if (auto ok = windows_->start_deputy(); !ok) return ok;
  }
  const bool perf_uprobes = session.probes().uses_perf_uprobes();
  auto admin = drop_capabilities(perf_uprobes);
  if (!admin) return tl::unexpected<Error>(admin.error());
  if (*admin)
    console.line(perf_uprobes ? "CAP_SYS_ADMIN is kept: this kernel has no uprobe_multi (Linux 6.6)"
                              : "CAP_SYS_ADMIN is kept: CAP_BPF and CAP_PERFMON are not granted");
  return {};
}

// The deputy gets them as memfds: it copies bytes and gives names.
void ResultFiles::save_cubins(Session& session) {
  if (!cubins_) return;
  SavedCubins& saved = saved_cubins_;
  DeviceModules& modules = session.recorder().device_modules();
  for (const std::string& sha256 : modules.sampled()) {
    if (!tried_cubins_.insert(sha256).second) continue;
    auto bytes = modules.bytes(sha256);
    if (!bytes) {
      saved.add_lost();
      continue;
    }
    const UniqueFd file(::memfd_create("gpu-profiled-cubin", MFD_CLOEXEC));
    size_t at = 0;
    while (file.valid() && at < bytes->size()) {
      const ssize_t put = ::write(file.get(), bytes->data() + at, bytes->size() - at);
      if (put <= 0) break;
      at += static_cast<size_t>(put);
    }
    const int err = errno;
    if (at != bytes->size()) {
      saved.add(fail_errno(Code::kIo, err, "a cubin was not saved (memfd)"));
    } else {
      saved.add(deputy_ ? deputy_->save_cubin(sha256, file.get())
                        : cubins_->save(sha256, file.get()));
    }
  }
}

void ResultFiles::tick(Session& session, Console& console, const std::function<void()>& meanwhile) {
  if (windows_) windows_->tick(session, console, meanwhile, [&] { save_cubins(session); });
}

int ResultFiles::write_last_window(Session& session, const join::JoinResult& result,
                                   Console& console) {
  int exit_code = windows_->finish(session, result, console) ? kExitProfileWritten : kExitFailure;
  const RunSoFar& run = windows_->run();
  if (run.windows.empty == run.windows.ended)
    console.line("no GPU work ran while it was observed: no profile was written");
  save_cubins(session);
  if (cubins_) {
    console.line(saved_cubins_.line(cubins_->path()));
    if (saved_cubins_.failed()) exit_code = kExitFailure;
  }
  console.block(human_summary(session, result, windows_->last_written(), run.of_run, &run));
  return exit_code;
}

int ResultFiles::write(Session& session, const join::JoinResult& result, Console& console) {
  if (windows_) return write_last_window(session, result, console);
  join::AssembleStats assembled;
  join::Model model = join::assemble(result, session.recorder().stacks(), session.recorder(),
                                     &session.recorder(), {}, &assembled);
  session.recorder().device_modules().release_parsed();
  model.duration_ns = static_cast<int64_t>(session.ended_ns() - session.started_ns());
  model.time_unix_ns = unix_ns() - static_cast<int64_t>(monotonic_ns() - session.started_ns());
  model.comments = profile_comments(session, result);
  int exit_code = kExitProfileWritten;
  // An idle GPU is an answer, too, and whoever attaches once a minute wants no failure of it.
  if (result.rows.empty())
    console.line("no GPU work ran while it was observed: the profile is empty");
  std::string written, told;
  auto failed = [&](const Error& error) {
    if (error.message != told) console.line(error.message);  // a killed deputy fails every file
    told = error.message;
    exit_code = kExitFailure;
  };
  auto bytes = pprof::serialize(model);
  auto path =
      bytes ? profile_->commit(*bytes) : Result<std::string>(tl::unexpected<Error>(bytes.error()));
  if (path) {
    written = *path;
  } else {
    failed(path.error());
  }
  if (json_) {
    auto json = json_->commit(json_summary(session, result, written, assembled));
    if (!json) failed(json.error());
  }
  if (cubins_) {
    save_cubins(session);
    console.line(saved_cubins_.line(cubins_->path()));
    if (saved_cubins_.failed()) exit_code = kExitFailure;
  }
  console.block(human_summary(session, result, written, assembled));
  return exit_code;
}

}  // namespace gpuprof::cli

// SPDX-License-Identifier: Apache-2.0
//
// gpu-profiled run: start a command with the shim and profile it and its children.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <string>
#include <vector>

#include "daemon/base/clock.h"
#include "daemon/cli/command.h"
#include "daemon/cli/command_line.h"
#include "daemon/cli/cuda_compat.h"
#include "daemon/cli/diagnose.h"
#include "daemon/cli/environment.h"
#include "daemon/cli/exit_code.h"
#include "daemon/cli/profile_run.h"
#include "daemon/cli/progress.h"
#include "daemon/cli/result_files.h"
#include "daemon/cli/session.h"
#include "daemon/cli/shim_path.h"
#include "daemon/cli/signals.h"
#include "daemon/cli/target_rows.h"
#include "daemon/target/process.h"
#include "daemon/target/shim_file.h"

namespace gpuprof::cli {
namespace {

using std::chrono::milliseconds;

std::string_view base_name(const std::string& path) {
  return std::string_view(path).substr(path.rfind('/') + 1);
}

// The terminal sends its signals to the whole foreground process group, the command included; what
// somebody sent to us alone is for the command, too.
void pass_on(const signalfd_siginfo& info, const Command& command, Deputy* deputy) {
  const bool from_terminal = info.ssi_code == SI_KERNEL;
  if (from_terminal) return;
  const auto number = static_cast<int>(info.ssi_signo);
  // The command may run as another user, and CAP_KILL is gone.
  if (!command.send(number) && errno == EPERM && deputy != nullptr)
    (void)deputy->signal(number).has_value();
}

// Everything of the profile that must be ready before the command runs.
Result<std::unique_ptr<Session>> prepare(const Options& options, const std::string& shim,
                                         Console& console) {
  auto file = target::ShimFile::open(shim);
  if (!file)
    return fail(Code::kNoTarget, "no shim: " + file.error().message +
                                     "; install it, or name it with --shim or GPU_PROFILED_SHIM");
  auto session = Session::create(options, console);
  if (!session) return session;
  if (auto ok = (*session)->attach(*file); !ok) return tl::unexpected<Error>(ok.error());
  return session;
}

class Run {
 public:
  Run(const Options& options, const InheritedLimits& limits, Console& console, Signals& signals)
      : options_(options), limits_(limits), console_(console), signals_(signals) {}

  int go();

 private:
  Result<Command> fork_command(const Invoker& invoker, bool profiled);
  void watch_command();
  int profile_until_exit();
  int only_wait();
  void forward_signals();
  void write_profile();
  [[nodiscard]] std::string why_no_target() const;
  Status choose_libcuda(const Invoker& invoker);
  void tell_other_libcuda();

  const Options& options_;
  const InheritedLimits& limits_;
  Console& console_;
  Signals& signals_;
  std::string shim_;
  CompatChoice compat_;
  LibcudaWatch libcuda_watch_;
  std::unique_ptr<Session> session_;
  std::optional<Command> command_;
  std::optional<ResultFiles> files_;
};

Result<Command> Run::fork_command(const Invoker& invoker, bool profiled) {
  Environment environment = Environment::current();
  set_identity(environment, invoker);
  if (profiled) set_profiling(environment, options_, shim_);
  if (!compat_.directory.empty()) set_compat(environment, compat_.directory);
  return Command::fork(options_.command, environment, invoker, signals_.original_mask(), limits_);
}

Status Run::choose_libcuda(const Invoker& invoker) {
  AskAs as{Environment::current(), invoker, signals_.original_mask(), limits_};
  set_identity(as.environment, invoker);
  auto choice = cuda_compat(options_.cuda_compat, as);
  if (!choice) return tl::unexpected<Error>(choice.error());
  compat_ = std::move(*choice);
  if (!compat_.line.empty()) console_.line(compat_.line);
  return {};
}

void Run::tell_other_libcuda() {
  for (const auto& [id, target] : session_->controlled()) {
    const auto line = other_libcuda(compat_, id.pid, target.status.libcuda_path);
    if (!line) continue;
    console_.line(*line);
    return;
  }
}

void Run::forward_signals() {
  Deputy* deputy = files_ ? files_->deputy() : nullptr;
  while (auto info = signals_.next()) {
    if (options_.yield && is_yield_signal(static_cast<int>(info->ssi_signo))) {
      if (session_) session_->heed(static_cast<int>(info->ssi_signo));
    } else {
      pass_on(*info, *command_, deputy);
    }
  }
}

int Run::only_wait() {
  for (;;) {
    if (auto status = command_->poll_exit()) return *status;
    forward_signals();
    ::usleep(20'000);
  }
}

// No process loaded the shim.
std::string Run::why_no_target() const {
  const std::vector<ProcessCheck> beside = session_->beside();
  const auto refused = std::ranges::find_if(
      beside, [](const ProcessCheck& check) { return is_refused(check.verdict); });
  if (libcuda_watch_.failure().empty() && refused != beside.end()) return refused->line;
  return "the command never initialised CUDA (" +
         (libcuda_watch_.failure().empty() ? "no process loaded the shim"
                                           : libcuda_watch_.failure()) +
         ")";
}

void Run::write_profile() {
  const join::JoinResult result = session_->finish(kDisarmPatience, [this] {
    forward_signals();
    return false;
  });
  tell_other_libcuda();
  if (result.rows.empty() && !session_->any_target()) {
    tell_targets(*session_, result, console_);
    console_.line("nothing could be profiled: " + why_no_target() + "; no file written");
    return;
  }
  if (result.rows.empty()) {
    if (auto why = session_->why_nothing()) {
      tell_targets(*session_, result, console_);
      console_.line("nothing could be profiled" + (why->empty() ? "" : ": " + *why) +
                    "; no file written");
      return;
    }
  }
  files_->write(*session_, result, console_);
}

int Run::profile_until_exit() {
  Progress progress(*session_, console_);
  const uint64_t deadline = deadline_of(options_);
  for (;;) {
    session_->tick(kTick);
    forward_signals();
    progress.update();
    files_->tick(*session_, console_, [&] {
      forward_signals();
      progress.update();
    });
    if (!session_->any_target())
      libcuda_watch_.look(static_cast<uint32_t>(command_->pid()), monotonic_ns());
    const auto status = command_->poll_exit();
    if (status) {
      session_->tick(milliseconds(0));
      write_profile();
      return *status;
    }
    if (monotonic_ns() >= deadline) {
      write_profile();
      session_.reset();
      return only_wait();
    }
  }
}

int Run::go() {
  shim_ = find_shim(options_.shim);
  auto invoker = Invoker::resolve(options_.user);
  if (!invoker) {
    console_.line(invoker.error().message);
    return exit_code_of(invoker.error()) == kExitUsage ? kExitUsage : kExitFailure;
  }
  if (!invoker->note.empty()) console_.line(invoker->note);
  if (auto ok = check_injection(Environment::current(), shim_, options_.force); !ok) {
    console_.line(ok.error().message);
    return kExitUsage;
  }
  if (auto ok = choose_libcuda(*invoker); !ok) {
    console_.line(ok.error().message);
    return kExitUsage;
  }
  auto session = prepare(options_, shim_, console_);
  if (session) {
    session_ = std::move(*session);
  } else {
    if (session.error().code == Code::kInvalidArgument) {
      console_.line(session.error().message);
      return kExitUsage;
    }
    console_.line(session.error().message + "; the command runs unprofiled");
  }
  auto command = fork_command(*invoker, session_ != nullptr);
  if (!command) {
    console_.line(command.error().message);
    return kExitFailure;
  }
  command_.emplace(std::move(*command));
  if (session_) {
    auto opened = ResultFiles::open(options_, *invoker, base_name(options_.command.front()),
                                    static_cast<uint32_t>(command_->pid()));
    if (!opened) {  // the command has not begun: better now than after an hour
      console_.line(opened.error().message);
      command_->abandon();
      return opened.error().code == Code::kInvalidArgument ? kExitUsage : kExitFailure;
    }
    files_.emplace(std::move(*opened));
    watch_command();
    if (auto ok = files_->drop_privileges(*session_, command_->pid(), console_); !ok)
      console_.line("privileges are not dropped: " + ok.error().message);
  }
  if (auto ok = command_->start(); !ok) {
    console_.line(ok.error().message);
    return kExitFailure;
  }
  if (!session_) return only_wait();
  try {
    return profile_until_exit();
  } catch (const std::bad_alloc&) {
    console_.line(std::string(kOutOfMemory) + "; the command goes on unprofiled");
  }
  session_.reset();
  return only_wait();
}

void Run::watch_command() {
  auto id = target::process_id(static_cast<uint32_t>(command_->pid()));
  auto watched = id ? session_->watch(*id) : Status(tl::unexpected<Error>(id.error()));
  if (!watched) console_.line("the command runs unprofiled: " + watched.error().message);
}

}  // namespace

int run_command(const Options& options, const InheritedLimits& limits, Console& console) {
  auto signals = Signals::create();
  if (!signals) {
    console.line(signals.error().message);
    return kExitFailure;
  }
  return Run(options, limits, console, *signals).go();
}

}  // namespace gpuprof::cli

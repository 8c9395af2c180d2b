// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/process_check.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "daemon/base/clock.h"
#include "daemon/cli/diagnose.h"
#include "daemon/cli/report_parts.h"
#include "daemon/doctor/cupti_users.h"
#include "daemon/doctor/shim_mappings.h"
#include "daemon/target/process.h"
#include "daemon/target/text.h"

namespace gpuprof::cli {
namespace {

constexpr uint32_t kLookAgainMs = 50;
constexpr const char* kNoCuda = "does not use CUDA (libcuda is not mapped)";

uint64_t executions_of(const target::ShimStatus& status) {
  return status.probe_totals[GPUPROF_PROBE_EXEC];
}

uint64_t launches_of(const target::ShimStatus& status) {
  return status.drop_totals[GPUPROF_DROP_LAUNCHES_SEEN];
}

std::string counted(uint64_t number, const char* one) {
  return grouped(number) + " " + one + (number == 1 ? "" : "s");
}

Verdict verdict_of(NoShim why) {
  switch (why) {
    case NoShim::kNoCuda:
      return Verdict::kNoCuda;
    case NoShim::kNotYet:
      return Verdict::kNotYet;
    case NoShim::kNotInjected:
      return Verdict::kNotInjected;
    case NoShim::kForeign:
      return Verdict::kForeign;
    case NoShim::kDriver:
    case NoShim::kBroken:
      break;
  }
  return Verdict::kBroken;
}

Verdict verdict_of(const target::ShimStatus& status) {
  switch (status.state) {
    case GPUPROF_STATE_TRACING:
    case GPUPROF_STATE_TRACING_PC:
      return executions_of(status) > 0 ? Verdict::kProfiled : Verdict::kArmed;
    case GPUPROF_STATE_ARMING:
      return Verdict::kArmed;
    case GPUPROF_STATE_BUSY:
      return Verdict::kBusy;
    case GPUPROF_STATE_DECLINED:
      return Verdict::kDeclined;
    case GPUPROF_STATE_INERT:
      return Verdict::kInert;
    case GPUPROF_STATE_IDLE:
    case GPUPROF_STATE_DISARMING:
      return Verdict::kIdle;
    default:
      return Verdict::kUnseen;
  }
}

// One process; its parts in the order in which they are found out.
class Look {
 public:
  Look(const target::ProcessStat& stat, std::string kernel_module)
      : kernel_module_(std::move(kernel_module)) {
    out_.pid = stat.pid;
    out_.parent = stat.parent;
    out_.comm = stat.comm;
    id_ = ProcessId{stat.pid, stat.start_ticks};
  }

  ProcessCheck go() {
    auto mappings = target::file_mappings(out_.pid);
    if (mappings) mappings_ = std::move(*mappings);
    shims_ = doctor::shim_mappings(mappings_);
    if (!shims_.empty()) out_.shim = target::printable(shims_.front().path);
    if (auto driver = target::mapped_cuda_driver(out_.pid, kernel_module_))
      out_.driver = std::move(*driver);
    auto channel = target::ShimChannel::open(id_);
    if (channel) {
      look_at_page(*channel);
    } else {
      look_without_page(channel.error());
    }
    if (mappings) look_at_files();
    if (auto stopped = explain_stopped(out_.pid); stopped && is_ready(out_.verdict)) warn(*stopped);
    return std::move(out_);
  }

 private:
  void say(Verdict verdict, const std::string& line) {
    out_.verdict = verdict;
    out_.line = line;
    out_.text = without_name(out_.pid, line);
  }
  void warn(const std::string& line) { out_.warnings.push_back(without_name(out_.pid, line)); }

  void look_at_page(const target::ShimChannel& channel) {
    auto status = channel.read_status(target::ShimChannel::Wait::kBriefly);
    if (!status) return say(Verdict::kUnseen, status.error().message);
    out_.status = *status;
    const bool opengl = out_.driver.of_opengl_driver;
    out_.driver = target::cuda_driver_of(*status, kernel_module_);
    out_.driver.of_opengl_driver = opengl;
    if (auto holder = channel.controller()) out_.controller = *holder;
    const PageVerdict page = judge_page(out_.pid, *status);
    say(page.verdict, page.text.empty() ? ready_text(*status) : page.text);
    if (out_.verdict == Verdict::kBusy) name_cupti_users();
    if (out_.verdict == Verdict::kProfiled || out_.verdict == Verdict::kArmed || status->eager)
      warn_cupti_users(status->eager);
    if (auto refused = explain_pc_sampling(out_.pid, *status)) warn(*refused);
    if (auto copies = find_cupti_copies(out_.pid, *status))
      warn(explain_cupti_copies(out_.pid, *copies));
    for (const doctor::CuptiLimit& limit :
         doctor::cupti_limits(status->cupti_version, status->driver_version))
      warn(limit.text);
    if (auto fails = target::explain_failure(out_.driver)) {
      // cuInit loads the shim before it fails: the page is that of a program without CUDA.
      const bool unused = out_.verdict == Verdict::kIdle && status->module_count == 0;
      if (unused && status->arms == 0) {
        say(Verdict::kBroken, "CUDA does not work in it: " + *fails);
      } else {
        warn("CUDA may not work: " + *fails);
      }
    }
    if (!status->unknown_knobs.empty())
      warn("its shim knows no variable " + status->unknown_knobs + ": correct the name");
    out_.unrecorded = out_.verdict == Verdict::kArmed && launches_of(*status) > 0;
  }

  [[nodiscard]] std::string ready_text(const target::ShimStatus& status) const {
    std::string by = out_.controller
                         ? " by " +
                               (out_.controller->name.empty() ? std::string("an unnamed controller")
                                                              : out_.controller->name) +
                               " (pid " + std::to_string(out_.controller->pid) + ")"
                         : std::string();
    switch (verdict_of(status)) {
      case Verdict::kProfiled:
        return "profiled" + by + ": " + counted(executions_of(status), "execution") +
               " recorded since it started";
      case Verdict::kArmed:
        return "profiled" + by + ": waits for its first GPU work";
      default:
        break;
    }
    if (status.state == GPUPROF_STATE_DISARMING)
      return "ready; its last profile ends with its next launch";
    return out_.controller ? "held" + by : "ready: gpu-profiled --pid " + std::to_string(out_.pid);
  }

  // "" where there is none.
  std::string find_cupti_users() {
    out_.cupti_users = doctor::cupti_users(mappings_);
    std::string names;
    for (const std::string& tool : out_.cupti_users) names += (names.empty() ? "" : ", ") + tool;
    return names;
  }

  void name_cupti_users() {
    if (const std::string names = find_cupti_users(); !names.empty())
      out_.text += " (in it: " + names + ")";
  }

  void warn_cupti_users(bool eager) {
    const std::string names = find_cupti_users();
    if (names.empty()) return;
    warn(names + " in it gets no GPU events while " +
         (eager ? "it runs, as GPU_PROFILED_SUBSCRIBE=eager keeps CUPTI's one client: unset that"
                : "it is profiled, as CUPTI has one client: gpu-profiled --yield makes room for it "
                  "when SIGUSR1 comes"));
  }

  void look_without_page(const Error& error) {
    if (error.code == Code::kPermission || error.code == Code::kNotFound)
      return say(Verdict::kUnseen, error.message);
    if (error.code == Code::kUnsupported) return say(Verdict::kOtherAbi, error.message);
    if (is_forked())
      return say(Verdict::kForked,
                 "forked by process " + std::to_string(out_.parent) +
                     " after that loaded the shim: CUDA does not work in such a child, so there is "
                     "nothing to profile");
    if (error.code != Code::kNoTarget) return say(Verdict::kInert, error.message);
    if (!shims_.empty()) return say(Verdict::kDeclined, no_status_page(out_.pid).message);
    auto facts = injection_facts(out_.pid);
    if (!facts) return say(Verdict::kUnseen, facts.error().message);
    out_.fault = facts->library.fault;
    out_.may_come =
        no_shim_of(*facts) == NoShim::kBroken && facts->library.text.empty() && !facts->gpu_open;
    say(verdict_of(no_shim_of(*facts)), explain_no_shim(*facts));
  }

  [[nodiscard]] bool is_forked() const {
    if (shims_.empty() || out_.parent == 0) return false;
    const auto parents = target::file_mappings(out_.parent);
    return parents && doctor::is_fork_of(shims_, doctor::shim_mappings(*parents));
  }

  void look_at_files() {
    if (shims_.size() > 1)
      warn("it has mapped two shims, " + target::printable(shims_[0].path) + " and " +
           target::printable(shims_[1].path) +
           ": one is used; remove the other from LD_PRELOAD and the program");
    const UniqueFd root(
        ::open(("/proc/" + std::to_string(out_.pid) + "/root").c_str(), O_PATH | O_CLOEXEC));
    if (!root.valid()) return;
    for (const doctor::ShimMapping& shim : shims_) {
      if (doctor::is_replaced(shim, root))
        warn(
            "its shim " + target::printable(shim.path) +
            " was replaced or removed on disk since it was loaded: it runs on the old one until it "
            "is restarted");
    }
  }

  const std::string kernel_module_;
  ProcessId id_;
  std::vector<target::Mapping> mappings_;
  std::vector<doctor::ShimMapping> shims_;
  ProcessCheck out_;
};

// Launches and executions of its page now; nullopt: it is gone, or cannot be read.
std::optional<target::ShimStatus> page_of(const ProcessCheck& process) {
  auto id = target::process_id(process.pid);
  if (!id) return {};
  auto channel = target::ShimChannel::open(*id);
  if (!channel) return {};
  auto status = channel->read_status();
  if (!status) return {};
  return *status;
}

}  // namespace

std::string without_name(uint32_t pid, std::string line) {
  const std::string name = "process " + std::to_string(pid);
  if (!line.starts_with(name)) return line;
  line.erase(0, name.size());
  if (line.starts_with(':')) line.erase(0, 1);
  if (line.starts_with(' ')) line.erase(0, 1);
  return line;
}

PageVerdict judge_page(uint32_t pid, const target::ShimStatus& status) {
  PageVerdict out{verdict_of(status), ""};
  if (auto trouble = explain_state(pid, status)) {
    if (out.verdict == Verdict::kIdle) out.verdict = Verdict::kFailing;
    out.text = std::move(trouble->message);
  }
  return out;
}

const char* verdict_name(Verdict verdict) {
  constexpr const char* kNames[] = {"profiled", "armed",     "idle",    "busy",    "failing",
                                    "declined", "inert",     "forked",  "broken",  "not-injected",
                                    "foreign",  "other-abi", "not-yet", "no-cuda", "unseen"};
  static_assert(std::size(kNames) == static_cast<size_t>(Verdict::kUnseen) + 1);
  return kNames[static_cast<size_t>(verdict)];
}

bool is_ready(Verdict verdict) {
  return verdict == Verdict::kProfiled || verdict == Verdict::kArmed || verdict == Verdict::kIdle;
}

bool is_refused(Verdict verdict) {
  return !is_ready(verdict) && verdict != Verdict::kForked && verdict != Verdict::kNotYet &&
         verdict != Verdict::kNoCuda;
}

Result<ProcessCheck> check_process(uint32_t pid, const std::string& kernel_module) {
  auto stat = target::process_stat(pid);
  if (!stat) return tl::unexpected<Error>(stat.error());
  return Look(*stat, kernel_module).go();
}

Result<std::vector<ProcessCheck>> check_tree(uint32_t pid, const std::string& kernel_module) {
  if (const auto process = target::process_of_thread(pid))
    return tl::unexpected<Error>(thread_id_error(pid, *process));
  auto root = check_process(pid, kernel_module);
  if (!root) return tl::unexpected<Error>(root.error());
  std::vector<ProcessCheck> out;
  out.push_back(std::move(*root));
  const auto self = static_cast<uint32_t>(::getpid());
  for (const uint32_t child : target::descendants(pid)) {
    if (child == self) continue;
    auto check = check_process(child, kernel_module);
    if (!check) continue;
    // Which pid to give instead is no question where several are shown.
    if (check->verdict == Verdict::kNoCuda) check->text = kNoCuda;
    out.push_back(std::move(*check));
  }
  if (out.size() > 1 && out.front().verdict == Verdict::kNoCuda) out.front().text = kNoCuda;
  return out;
}

std::string unrecorded_warning(uint64_t seconds) {
  return "launches without a record for " + std::to_string(seconds) +
         " s: CUPTI gives no activity; another tool may have taken it over: end that, or restart "
         "the process";
}

void recheck_unrecorded(std::vector<ProcessCheck>& processes, uint32_t patience_ms) {
  const uint64_t deadline = monotonic_ns() + uint64_t{patience_ms} * 1'000'000;
  auto waits = [](const ProcessCheck& process) { return process.unrecorded; };
  while (std::ranges::any_of(processes, waits) && monotonic_ns() < deadline) {
    ::usleep(kLookAgainMs * 1000);
    for (ProcessCheck& process : processes) {
      if (!process.unrecorded) continue;
      const auto now = page_of(process);
      if (!now || executions_of(*now) > 0) process.unrecorded = false;
      if (!now || executions_of(*now) == 0) continue;
      process.verdict = Verdict::kProfiled;
      process.text = "profiled: " + counted(executions_of(*now), "execution") + " recorded";
    }
  }
  for (ProcessCheck& process : processes) {
    if (!process.unrecorded) continue;
    const auto now = page_of(process);
    process.unrecorded = now && launches_of(*now) > launches_of(*process.status);
    if (process.unrecorded) process.warnings.push_back(unrecorded_warning(patience_ms / 1000));
  }
}

}  // namespace gpuprof::cli

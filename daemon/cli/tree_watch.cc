// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/tree_watch.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "daemon/cli/diagnose.h"
#include "daemon/target/cuda_driver.h"
#include "daemon/target/process.h"

namespace gpuprof::cli {
namespace {

constexpr uint64_t kIntervalNs = 500'000'000;
constexpr uint64_t kShare = 100;         // of our time, what looking may take
constexpr uint32_t kSecondLookMs = 150;  // the steps of a start take less

// Of this thread, so that a busy machine makes nobody look less often.
uint64_t cpu_ns() {
  timespec now = {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// What is found so of a process will not become true by waiting.
bool is_definite(const ProcessCheck& check) {
  switch (check.verdict) {
    case Verdict::kNotInjected:
    case Verdict::kForeign:
    case Verdict::kForked:
    case Verdict::kOtherAbi:
      return true;
    case Verdict::kBroken:
      return check.fault != doctor::LibraryFault::kNone &&
             check.fault != doctor::LibraryFault::kUnseen;
    default:
      return false;
  }
}

bool is_of_interest(const ProcessCheck& check) {
  return check.verdict != Verdict::kNoCuda && check.verdict != Verdict::kNotYet &&
         check.verdict != Verdict::kUnseen && !check.may_come;
}

}  // namespace

TreeWatch::TreeWatch() : kernel_module_(target::kernel_module_release()) {}

void TreeWatch::add(ProcessId process) {
  if (known_.size() < kMostProcesses) known_.insert(process.process());
}

void TreeWatch::keep(ProcessId process, ProcessCheck check) {
  const auto at = found_.find(process);
  if (at == found_.end() && found_.size() >= kMostFindings) {
    const auto ended =
        std::ranges::find_if(found_, [](const auto& entry) { return entry.second.ended; });
    if (ended == found_.end()) return;  // found again by a later look
    found_.erase(ended);
    ++more_;
  }
  Finding& finding = at == found_.end() ? found_[process] : at->second;
  finding.stands =
      is_definite(check) || (at != found_.end() && finding.check.verdict == check.verdict);
  finding.check = std::move(check);
}

void TreeWatch::look_at(ProcessId process, bool again) {
  const auto at = found_.find(process);
  if (at != found_.end() && at->second.stands && !again) return;
  std::optional<ProcessCheck> check;
  if (uses_cuda(process.pid)) {
    const uint64_t begin = cpu_ns();
    if (auto looked = check_process(process.pid, kernel_module_)) check = std::move(*looked);
    checks_ns_ += cpu_ns() - begin;
  }
  // Gone meanwhile: what was found before holds.
  if (const auto now = target::process_id(process.pid); !now || *now != process) return;
  if (check && is_of_interest(*check)) {
    keep(process, std::move(*check));
  } else if (at != found_.end()) {
    found_.erase(at);
  }
}

void TreeWatch::look_at_trees(const IsOurs& is_ours, bool again) {
  const std::vector<ProcessId> roots(known_.begin(), known_.end());
  known_.clear();
  const auto self = static_cast<uint32_t>(::getpid());
  for (const target::ProcessStat& stat : target::process_tree(roots)) {
    const ProcessId process{stat.pid, stat.start_ticks};
    if (stat.pid == self || stat.state == 'Z') continue;
    add(process);
    if (is_ours(process)) {
      found_.erase(process);
    } else {
      look_at(process, again);
    }
  }
  for (auto& [process, finding] : found_) finding.ended = !known_.contains(process);
}

void TreeWatch::look(uint64_t now_ns, const IsOurs& is_ours) {
  if (now_ns < next_ns_) return;
  // A check is made once or twice of a process: what comes back with each look is the rest.
  checks_ns_ = 0;
  const uint64_t begin = cpu_ns();
  look_at_trees(is_ours, false);
  next_ns_ = now_ns + std::max(kIntervalNs, (cpu_ns() - begin - checks_ns_) * kShare);
}

bool TreeWatch::some_may_change() const {
  return std::ranges::any_of(
      found_, [](const auto& entry) { return !entry.second.stands && !entry.second.ended; });
}

void TreeWatch::look_last(const IsOurs& is_ours) {
  look_at_trees(is_ours, true);
  if (!some_may_change()) return;
  ::usleep(kSecondLookMs * 1000);
  look_at_trees(is_ours, false);
}

std::vector<std::string> TreeWatch::take_news() {
  std::vector<std::string> out;
  for (auto& [process, finding] : found_) {
    if (!finding.stands || finding.told || !is_refused(finding.check.verdict)) continue;
    finding.told = true;
    out.push_back(finding.check.line);
  }
  return out;
}

std::vector<ProcessCheck> TreeWatch::findings(const IsOurs& is_ours) const {
  std::vector<ProcessCheck> out;
  for (const auto& [process, finding] : found_) {
    if (finding.stands && !is_ours(process)) out.push_back(finding.check);
  }
  return out;
}

}  // namespace gpuprof::cli

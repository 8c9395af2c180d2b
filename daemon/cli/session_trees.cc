// SPDX-License-Identifier: Apache-2.0
//
// Session: what the table at its end says of its targets, and of processes beside them that use
// CUDA.
#include "daemon/base/clock.h"
#include "daemon/cli/session.h"
#include "daemon/target/process.h"

namespace gpuprof::cli {
namespace {

constexpr size_t kMostBesideTold = 8;
constexpr uint64_t kRecordPatienceNs = 2'000'000'000;

}  // namespace

// Any program of that process.
bool Session::is_ours(ProcessId process) const {
  const auto at = controlled_.lower_bound(process.process());
  return at != controlled_.end() && at->first.process() == process.process();
}

void Session::look_at_trees(uint64_t now_ns) {
  trees_.look(now_ns, [this](ProcessId process) { return is_ours(process); });
  tell_beside();
}

void Session::consider(ProcessId process) {
  if (!is_ours(process)) trees_.consider(process);
}

void Session::tell_beside() {
  for (const std::string& line : trees_.take_news()) {  // their GPU work will be missing
    if (beside_told_ == kMostBesideTold)
      console_.line("not profiled: more processes (the table at the end has them)");
    if (beside_told_ < kMostBesideTold) console_.line("not profiled: " + line);
    ++beside_told_;
  }
}

std::vector<ProcessCheck> Session::beside() const {
  return trees_.findings([this](ProcessId process) { return is_ours(process); });
}

// doctor's rule, of this run: launches before and after 2 s, and no record between.
void Session::look_for_records(Controlled& target, uint64_t now_ns) {
  const uint64_t records = target.status.probe_totals[GPUPROF_PROBE_EXEC];
  const uint64_t launches = target.status.drop_totals[GPUPROF_DROP_LAUNCHES_SEEN];
  Unrecorded& wait = target.unrecorded;
  if (wait.over) return;
  if (!wait.begun) {
    wait = {.records = records, .launches = launches, .begun = true};
  } else if (records != wait.records) {
    wait.over = true;
  } else if (wait.since_ns == 0) {
    if (launches == wait.launches) return;
    wait.launches = launches;
    wait.since_ns = now_ns;
  } else if (launches != wait.launches && now_ns - wait.since_ns >= kRecordPatienceNs) {
    wait.over = true;
    const std::string text = unrecorded_warning(kRecordPatienceNs / 1'000'000'000);
    target.warnings.push_back(text);
    if (!unrecorded_told_) console_.line("process " + std::to_string(target.id.pid) + ": " + text);
    unrecorded_told_ = true;
  }
}

// Of a program that is over, or at the end of the run.
void Session::judge(Controlled& target) {
  if (target.judged) return;
  target.judged = true;
  if (target.cupti_copies)
    target.warnings.push_back(
        without_name(target.id.pid, explain_cupti_copies(target.id.pid, *target.cupti_copies)));
  if (target.status.state != GPUPROF_STATE_INVALID) {
    PageVerdict page = judge_page(target.id.pid, target.status);
    target.verdict = page.verdict;
    target.finding = page.text.empty() ? target.trouble : std::move(page.text);
    return;
  }
  target.finding =
      target.trouble.empty() ? "ended before its shim could be looked at" : target.trouble;
  const auto now = target::process_id(target.id.pid);
  if (target.exited || !now || *now != target.id.process()) return;
  if (auto check = check_process(target.id.pid, target::kernel_module_release())) {
    target.verdict = check->verdict;
    target.finding = check->line;
  }
}

void Session::judge_all() {
  trees_.look_last([this](ProcessId process) { return is_ours(process); });
  tell_beside();
  for (auto& [id, target] : controlled_) {
    if (!target.forgotten) judge(target);
  }
}

}  // namespace gpuprof::cli

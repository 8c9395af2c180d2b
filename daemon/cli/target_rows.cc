// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/target_rows.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <utility>

#include "daemon/cli/doctor_report.h"
#include "daemon/cli/duration.h"
#include "daemon/cli/report_parts.h"

namespace gpuprof::cli {
namespace {

constexpr const char* kNoWork = "launched no GPU work while it was observed";

template <class Array>
uint64_t sum(const Array& values) {
  return std::accumulate(values.begin(), values.end(), uint64_t{0});
}

// What the profile has of a program.
std::string counts_text(const join::Accounting& account) {
  const uint64_t lost = sum(account.lost_ring) + sum(account.lost_shim) + account.evicted;
  std::string out =
      account.received == 0
          ? std::string("no execution was recorded")
          : grouped(account.received) + (account.received == 1 ? " execution, " : " executions, ") +
                human_duration(std::chrono::nanoseconds(account.received_ns)) + " of GPU time";
  if (lost > 0) out += ", " + grouped(lost) + " lost";
  return out;
}

bool has_counts(const join::Accounting& account) {
  return account.received + sum(account.lost_ring) + sum(account.lost_shim) > 0;
}

// It came and went, and had nothing to profile.
bool is_minor(const Controlled& target) {
  const bool unseen = target.verdict == Verdict::kUnseen;
  const bool without_work = target.verdict == Verdict::kInert &&
                            target.status.reason == GPUPROF_REASON_EXITING &&
                            target.status.reason_text.empty();
  return target.exited && (unseen || without_work);
}

void add_finding(ProcessCheck& check, const Controlled& target, const join::Accounting& account) {
  // A window may end while it lives.
  const PageVerdict page = target.judged ? PageVerdict{target.verdict, target.finding}
                                         : judge_page(check.pid, target.status);
  check.verdict = page.verdict;
  const std::string finding = without_name(check.pid, page.text);
  if (has_counts(account)) {
    if (account.received > 0) check.verdict = Verdict::kProfiled;
    check.text = counts_text(account);
    // What came to an end before the run did.
    if (!finding.empty() && is_refused(page.verdict) && !target.exited)
      check.text += "; " + finding;
    return;
  }
  if (check.verdict == Verdict::kProfiled) check.verdict = Verdict::kArmed;  // before this run
  check.text = finding.empty() ? kNoWork : finding;
}

ProcessCheck check_of(ProcessId id, const ProcessRecord* record) {
  ProcessCheck check;
  check.pid = id.pid;
  if (record != nullptr) check.comm = record->comm;
  return check;
}

// 0: not profiled and should be; 1: profiled or could be; 2: nothing to profile.
int rank_of(const TargetRow& row) {
  if (is_refused(row.check.verdict)) return row.is_minor ? 2 : 0;
  return is_ready(row.check.verdict) ? 1 : 2;
}

}  // namespace

std::vector<TargetRow> target_rows(const Session& session, const join::JoinResult& result) {
  const auto& records = session.recorder().processes();
  const auto record_of = [&](ProcessId id) {
    const auto at = records.find(id);
    return at == records.end() ? nullptr : &at->second;
  };
  std::map<ProcessId, const join::Accounting*> accounts;
  std::vector<TargetRow> out;
  for (const join::ProcessResult& process : result.processes) {
    accounts.emplace(process.process, &process.lifetime);
    if (session.controlled().contains(process.process)) continue;
    TargetRow row{check_of(process.process, record_of(process.process)), process.lifetime.received,
                  false};
    row.check.verdict = Verdict::kProfiled;
    row.check.text = counts_text(process.lifetime);
    out.push_back(std::move(row));
  }
  for (const auto& [id, target] : session.controlled()) {
    const auto account = accounts.find(id);
    TargetRow row{check_of(id, record_of(id)), 0, false};
    if (row.check.comm.empty()) row.check.comm = target.comm;
    if (account != accounts.end()) row.executions = account->second->received;
    add_finding(row.check, target,
                account == accounts.end() ? join::Accounting() : *account->second);
    row.check.warnings = target.warnings;
    row.is_minor = is_minor(target);
    out.push_back(std::move(row));
  }
  for (ProcessCheck& check : session.beside()) out.push_back({std::move(check), 0, false});
  std::ranges::stable_sort(out, [](const TargetRow& a, const TargetRow& b) {
    return std::pair(rank_of(a), b.executions) < std::pair(rank_of(b), a.executions);
  });
  return out;
}

std::string target_table(const std::vector<TargetRow>& rows, uint64_t not_looked_at) {
  if (rows.empty()) return {};
  std::vector<ProcessCheck> shown;
  std::map<Verdict, uint64_t> more;
  for (const TargetRow& row : rows) {
    if (shown.size() < kMostTableRows) {
      shown.push_back(row.check);
    } else {
      ++more[row.check.verdict];
    }
  }
  std::string out = process_table(shown, Versions::kNone);
  const uint64_t left_out = rows.size() - shown.size() + not_looked_at;
  if (left_out == 0) return out;
  std::string by_state;
  for (const auto& [verdict, count] : more)
    by_state += (by_state.empty() ? "" : ", ") + grouped(count) + " " + verdict_name(verdict);
  return out + "  " + grouped(left_out) + " more" + (by_state.empty() ? "" : ": " + by_state) +
         " (--summary-json)\n";
}

void tell_targets(const Session& session, const join::JoinResult& result, Console& console) {
  const std::vector<TargetRow> rows = target_rows(session, result);
  if (rows.size() > 1) console.block(target_table(rows, session.beside_left_out()));
}

void write_targets(JsonWriter& json, const std::vector<TargetRow>& rows, uint64_t not_looked_at) {
  json.key("processes");
  json.begin_array();
  const size_t shown = std::min(rows.size(), kMostJsonRows);
  for (size_t i = 0; i < shown; ++i) {
    const ProcessCheck& check = rows[i].check;
    json.begin_object();
    json.field("pid", check.pid);
    json.field("comm", check.comm);
    json.field("state", verdict_name(check.verdict));
    json.field("finding", check.text);
    if (check.verdict == Verdict::kBroken)
      json.field("cause", doctor::library_fault_name(check.fault));
    json.field("executions", rows[i].executions);
    json.key("warnings");
    json.begin_array();
    for (const std::string& warning : check.warnings) json.value(warning);
    json.end_array();
    json.end_object();
  }
  json.end_array();
  json.field("processes_left_out", static_cast<uint64_t>(rows.size() - shown) + not_looked_at);
}

}  // namespace gpuprof::cli

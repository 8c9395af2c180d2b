// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/report_parts.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <numeric>

#include "daemon/probe/usdt_notes.h"

namespace gpuprof::cli {
namespace {

constexpr const char* kDropNames[GPUPROF_DROP_CLASS_COUNT] = {
    "invalid",         "cupti",          "invalid_time",      "no_buffer",
    "name_table_full", "name_cut",       "module_table_full", "module_copy_full",
    "stack_budget",    "incomplete",     "guard_busy",        "unknown_kind",
    "clock_step",      "hw_buffer_full", "pc_dropped",        "non_user",
    "final_total",     "launches_seen",  "launches_drawn",    "pc_lost_drains",
    "pc_no_name"};
constexpr const char* kLossNames[probe::kLossReasonCount] = {"ring_full", "quota", "fault",
                                                             "malformed", "gap"};
// In the order of enum gpuprof_bpf_counter.
constexpr const char* kBpfNames[] = {
    "fired",       "ignored_process", "invisible_task", "events_full", "events_full_records",
    "stacks_full", "quota",           "quota_records",  "fault",       "bad_count",
    "stack_fault", "stacks_quota",    "watch_full",     "faulted_in",  "python_lost",
    "excluded"};
static_assert(std::size(kBpfNames) == GPUPROF_BPF_COUNTER_COUNT);

template <class Array>
uint64_t sum(const Array& values) {
  return std::accumulate(values.begin(), values.end(), uint64_t{0});
}

}  // namespace

std::string grouped(uint64_t number) {
  const std::string digits = std::to_string(number);
  std::string out;
  for (size_t at = 0; at < digits.size(); ++at) {
    if (at > 0 && (digits.size() - at) % 3 == 0) out += ',';
    out += digits[at];
  }
  return out;
}

std::string percent(uint64_t part, uint64_t whole) {
  char out[32];
  std::snprintf(out, sizeof out, "%.1f %%",
                whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole));
  return out;
}

const char* drop_name(uint32_t drop_class) { return kDropNames[drop_class]; }
void write_python(JsonWriter& json, const ProcessRecord& record) {
  if (record.python_version == 0 && record.python_error.empty()) return;
  json.key("python");
  json.begin_object();
  if (record.python_version != 0) {
    json.field("version", std::to_string(record.python_version >> 8) + "." +
                              std::to_string(record.python_version & 0xff));
  }
  if (!record.python_error.empty()) json.field("error", record.python_error);
  const python::PythonCounts& counts = record.python;
  json.field("stitched", counts.stitched);
  json.field("none", counts.none);
  json.field("disagree", counts.disagree);
  json.field("incomplete", counts.incomplete);
  json.field("beyond_native", counts.beyond_native);
  json.field("frames", counts.frames);
  json.field("unnamed_frames", counts.unnamed_frames);
  json.end_object();
}

void write_losses(JsonWriter& json, std::span<const uint64_t> by_reason) {
  json.begin_object();
  for (size_t i = 0; i < probe::kLossReasonCount; ++i) json.field(kLossNames[i], by_reason[i]);
  json.end_object();
}

void write_accounting(JsonWriter& json, const join::Accounting& account) {
  json.key("executions");
  json.begin_object();
  json.key("produced");
  if (const auto produced = account.produced())
    json.value(*produced);
  else
    json.null();
  json.field("received", account.received);
  json.key("lost_in_shim");
  json.begin_object();
  for (uint32_t i = 0; i < GPUPROF_DROP_CLASS_COUNT; ++i) {
    if (join::is_execution_loss(i)) json.field(drop_name(i), account.lost_shim[i]);
  }
  json.end_object();
  json.key("lost_in_ring");
  write_losses(json, account.lost_ring);
  json.key("attributed");
  json.begin_object();
  json.field("exact", account.exact);
  json.field("sampled", account.sampled);
  json.end_object();
  json.key("unattributed");
  json.begin_object();
  for (size_t i = 1; i < join::kUnmatchedCount; ++i)
    json.field(join::unmatched_name(static_cast<join::Unmatched>(i)), account.unattributed[i]);
  json.end_object();
  json.field("evicted", account.evicted);
  json.field("pending", account.pending);
  json.field("duplicates", account.duplicates);
  json.end_object();

  json.key("gpu_time_ns");
  json.begin_object();
  json.field("received", account.received_ns);
  json.field("exact", account.exact_ns);
  json.field("sampled", account.sampled_ns);
  json.field("unattributed", sum(account.unattributed_ns));
  json.field("evicted", account.evicted_ns);
  json.field("pending", account.pending_ns);
  json.end_object();
  const std::string broken = account.check();
  json.key("identity_holds");
  if (const auto holds = account.identity_holds())
    json.value(*holds);
  else
    json.null();
  if (!broken.empty()) json.field("identity_broken", broken);
}

void write_rings(JsonWriter& json, const probe::ProbeCounters& counters) {
  json.begin_object();
  json.field("stacks_delivered", counters.stacks_delivered);
  json.field("stacks_lost", counters.stacks_lost);
  json.field("stacks_lost_ring_full", counters.bpf[GPUPROF_BPF_STACKS_FULL]);
  json.field("stacks_lost_quota", counters.bpf[GPUPROF_BPF_STACKS_QUOTA]);
  json.field("stacks_lost_unreadable", counters.bpf[GPUPROF_BPF_STACK_FAULT]);
  json.field("stacks_cut", counters.stacks_cut);
  json.field("stacks_partial", counters.stacks_partial);
  json.field("duplicate_records", counters.duplicate_records);
  json.field("late_records", counters.late_records);
  json.field("malformed", counters.malformed);
  json.field("unknown_probes", counters.unknown_probes);
  json.key("records");
  json.begin_object();
  for (uint32_t probe = 1; probe < GPUPROF_PROBE_AUTOARM; ++probe)
    json.field(probe::probe_name(probe), counters.delivered[probe]);
  json.end_object();
  json.field("names_incomplete", counters.names_incomplete);
  json.key("bpf");
  json.begin_object();
  for (size_t i = 0; i < counters.bpf.size(); ++i) json.field(kBpfNames[i], counters.bpf[i]);
  json.end_object();
  json.end_object();
}

void write_join(JsonWriter& json, const join::JoinStats& stats) {
  json.field("launches", stats.launches);
  json.field("launches_without_stack", stats.launches_without_stack);
  json.field("launches_duplicate", stats.launches_duplicate);
  json.field("launches_retired", stats.launches_retired);
  json.field("launches_never_executed", stats.launches_never_executed);
  json.field("launches_evicted", stats.launches_evicted);
  json.field("executions_resolved_early", stats.executions_resolved_early);
  json.field("executions_folded", stats.executions_folded);
  json.field("streams_folded", stats.streams_folded);
  json.field("rows_folded", stats.rows_folded);
  json.field("stacks_trimmed", stats.stacks_trimmed);
  json.field("executions_beside_another", stats.executions_beside_another);
  json.field("executions_of_another", stats.executions_of_another);
  json.field("processes_refused", stats.processes_refused);
  json.field("pc_resolved_early", stats.pc_resolved_early);
  json.field("pc_folded", stats.pc_folded);
  json.field("pc_stacks_trimmed", stats.pc_stacks_trimmed);
}

void write_symbols(JsonWriter& json, const symbolize::SymbolCounts& counts, DebugFetcher* fetcher) {
  json.begin_object();
  json.field("files", counts.files);
  json.field("with_dwarf", counts.with_dwarf);
  json.field("separate_files", counts.separate_files);
  json.field("mini_debug", counts.mini_debug);
  json.key("troubles");
  json.begin_object();
  for (size_t i = 0; i < counts.troubles.size(); ++i)
    json.field(symbolize::kDebugTroubleNames[i], counts.troubles[i]);
  json.end_object();
  if (fetcher != nullptr) {
    const DebugFetcher::Counts fetched = fetcher->counts();
    json.key("debuginfod");
    json.begin_object();
    json.field("wanted", fetched.wanted);
    json.field("found", fetched.found);
    json.field("missing", fetched.missing);
    json.end_object();
  }
  json.end_object();
}

void write_cuda_driver(JsonWriter& json, const target::CudaDriver& driver) {
  json.begin_object();
  json.field("kind", target::libcuda_kind_name(driver.kind));
  json.field("path", driver.path);
  json.field("release", driver.release);
  json.field("cuda", target::cuda_version_text(driver.cuda_version));
  json.field("kernel_module", driver.kernel_module);
  json.end_object();
}

void CudaDriverLines::add(uint32_t pid, const target::CudaDriver& driver) {
  std::string text = target::describe(driver);
  if (text.empty()) return;
  const auto same = std::ranges::find(lines_, text, &Line::text);
  if (same != lines_.end()) {
    ++same->processes;
  } else {
    lines_.push_back({std::move(text), pid, 1});
  }
}

std::vector<std::string> CudaDriverLines::lines() const {
  std::vector<std::string> out;
  for (const Line& line : lines_) {
    out.push_back(
        (line.processes == 1 ? "process " : "processes ") + std::to_string(line.first_pid) +
        (line.processes == 1 ? "" : " and " + std::to_string(line.processes - 1) + " more") + ": " +
        line.text);
  }
  return out;
}

std::string not_exact(const join::JoinStats& stats) {
  const auto part = [](uint64_t count, const char* what) {
    return count == 0 ? "" : grouped(count) + (count == 1 ? " execution" : " executions") + what;
  };
  const std::string beside =
      part(stats.executions_beside_another, " of launches that had one already");
  const std::string other =
      part(stats.executions_of_another, " with the id of another kernel's launch");
  return beside + (beside.empty() || other.empty() ? "" : "; ") + other;
}

std::string stacks_text(uint64_t taken, uint64_t whole, uint64_t guided) {
  std::string out = grouped(taken) + " taken, " + percent(whole, taken) + " whole";
  if (guided > 0)
    out +=
        ", " + grouped(guided) + (guided == 1 ? " frame" : " frames") + " by frame pointer alone";
  return out;
}

std::string not_seen(const probe::ProbeCounters& counters) {
  std::string out;
  if (const uint64_t children = counters.bpf[GPUPROF_BPF_WATCH_FULL]; children > 0)
    out = std::to_string(children) + (children == 1 ? " child process" : " child processes") +
          " beyond the most that are watched at a time";
  if (const uint64_t hits = counters.bpf[GPUPROF_BPF_INVISIBLE_TASK]; hits > 0) {
    if (!out.empty()) out += "; ";
    out += std::to_string(hits) + (hits == 1 ? " batch" : " batches") +
           " of processes outside of this pid namespace (run gpu-profiled in the host's)";
  }
  return out;
}

}  // namespace gpuprof::cli

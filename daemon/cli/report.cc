// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/report.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "daemon/cli/duration.h"
#include "daemon/cli/json_writer.h"
#include "daemon/cli/pc_report.h"
#include "daemon/cli/report_parts.h"
#include "daemon/cli/target_rows.h"
#include "daemon/cli/version.h"
#include "daemon/target/text.h"

namespace gpuprof::cli {
namespace {

// Names of the JSON's keys: the enums' own words.
constexpr const char* kProbeNames[GPUPROF_PROBE_COUNT] = {
    "invalid", "process", "launch", "exec", "pc_sample", "name",
    "module",  "device",  "window", "drop", "autoarm"};
constexpr const char* kEndNames[unwind::kStackEndCount] = {
    "invalid", "whole", "cut", "no_cfi", "no_module", "bad_frame", "too_deep", "no_stack"};

constexpr size_t kMostTaken = 8;  // rows of the summary

template <class Array>
uint64_t sum(const Array& values) {
  uint64_t out = 0;
  for (const uint64_t value : values) out += value;
  return out;
}

// A line for each GPU that a target wanted to sample and another one had.
std::vector<std::string> gpus_taken(const Session& session) {
  std::vector<std::string> out;
  for (const auto& [id, target] : session.controlled()) {
    for (const target::GpuUse& use : target.gpus) {
      if (std::string line = gpu_line(id.pid, use); !line.empty()) out.push_back(std::move(line));
    }
  }
  return out;
}

// Each pair of copies once, as it was told on the console.
std::vector<std::string> cupti_warnings(const Session& session) {
  std::vector<std::string> out;
  std::set<std::pair<std::string_view, std::string_view>> seen;
  for (const auto& [id, target] : session.controlled()) {
    const auto& copies = target.cupti_copies;
    if (!copies || out.size() == kMostTaken) continue;
    if (seen.emplace(copies->used, copies->other).second)
      out.push_back(explain_cupti_copies(id.pid, *copies));
  }
  return out;
}

const ProcessRecord* record_of(const Session& session, ProcessId id) {
  const auto& all = const_cast<Session&>(session).recorder().processes();
  const auto it = all.find(id);
  return it == all.end() ? nullptr : &it->second;
}

void write_record(JsonWriter& json, const ProcessRecord& record) {
  json.field("comm", record.comm);
  json.field("executable", record.executable);
  for (const auto& [key, text] : record.identity.labels()) json.field(key.c_str(), text);
  json.key("stacks");
  json.begin_object();
  json.field("taken", record.stacks_taken);
  for (size_t i = 1; i < record.stack_ends.size(); ++i)
    json.field(kEndNames[i], record.stack_ends[i]);
  json.field("table_full", record.stacks_refused);
  json.field("frames_by_frame_pointer", record.frames_by_frame_pointer);
  json.end_object();
  write_python(json, record);
  json.key("shim");
  json.begin_object();
  for (uint32_t i = 1; i < GPUPROF_DROP_CLASS_COUNT; ++i) {
    if (i != GPUPROF_DROP_FINAL_TOTAL) json.field(drop_name(i), record.drops[i]);
  }
  json.end_object();
  json.key("lost_records");  // of every probe, not only executions
  json.begin_object();
  for (uint32_t probe = 1; probe < GPUPROF_PROBE_COUNT; ++probe) {
    if (sum(record.lost[probe]) == 0) continue;
    json.key(kProbeNames[probe]);
    write_losses(json, record.lost[probe]);
  }
  json.end_object();
  json.field("kernel_names", static_cast<uint64_t>(record.kernel_names.size()));
  json.field("names_refused", record.names_refused);
  json.field("gpu_busy_ns", record.busy_ns);
  json.key("devices");
  json.begin_array();
  for (const auto& [id, device] : record.devices) {
    json.begin_object();
    json.field("id", id);
    json.field("name", target::printable(std::string_view(device.name, sizeof device.name)));
    json.field("sm_count", device.sm_count);
    json.end_object();
  }
  json.end_array();
  if (!record.space_error.empty()) json.field("maps", record.space_error);
}

// Totals of the process that cannot be true and are left out, by name.
std::vector<std::string> implausible(const Controlled& target, const ProcessRecord* record) {
  std::vector<std::string> out;
  for (uint32_t probe = 1; record != nullptr && probe < GPUPROF_PROBE_COUNT; ++probe) {
    if ((record->implausible_emitted >> probe & 1) != 0)
      out.push_back(std::string(kProbeNames[probe]) + " records");
  }
  for (uint32_t i = 1; record != nullptr && i < GPUPROF_DROP_CLASS_COUNT; ++i) {
    if ((record->implausible_drops >> i & 1) != 0)
      out.push_back(std::string(drop_name(i)) + " drops");
  }
  if (target.implausible_pc) out.emplace_back("PC sampling");
  if (target.implausible_modules) out.emplace_back("modules");
  return out;
}

// One line; empty: all may be true.
std::string implausible_line(const Controlled& target, const ProcessRecord* record) {
  const std::vector<std::string> names = implausible(target, record);
  if (names.empty()) return {};
  std::string out = "process " + std::to_string(target.id.pid) +
                    ": totals of its shim that cannot be true are left out (";
  constexpr size_t kNamed = 4;
  for (size_t i = 0; i < std::min(names.size(), kNamed); ++i)
    out += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kNamed) out += ", " + std::to_string(names.size() - kNamed) + " more";
  return out + "): something overwrites the shim's memory, look in the process for stray writes";
}

void write_control(JsonWriter& json, const Options& asked, const Controlled& target,
                   const ProcessRecord* record, const PcResult& pc) {
  json.field("state", target::state_name(target.status.state));
  json.field("cupti_version", target.status.cupti_version);
  json.field("cupti_path", target.status.cupti_path);
  json.field("cupti_origin", target::cupti_origin_name(target.status.cupti_origin));
  json.field("driver_version", target.status.driver_version);
  json.key("cuda_driver");
  write_cuda_driver(json, target::cuda_driver_of(target.status, target::kernel_module_release()));
  json.key("arms");
  if (target.gaps.implausible())
    json.null();
  else
    json.value(target.status.arms);
  json.field("modules", target.status.module_count);
  if (asked.tier > GPUPROF_TIER_TRACE)
    write_pc_sampling(json, asked, target.pc, target.pc_counters_before, target.gpus, pc);
  json.field("exited", target.exited);
  json.field("gap_ns", gap_ns(target, record));
  json.key("gaps");
  json.begin_object();
  json.field("count", target.gaps.count());
  json.field("total_ns", target.gaps.total_ns());
  json.field("cause", cause_name(target.gaps.cause()));
  json.field("implausible", target.gaps.implausible());
  json.end_object();
  json.key("implausible");
  json.begin_array();
  for (const std::string& name : implausible(target, record)) json.value(name);
  json.end_array();
  if (!target.status.unknown_knobs.empty())
    json.field("unknown_knobs", target.status.unknown_knobs);
  if (target.cupti_copies)
    json.field("cupti_warning", explain_cupti_copies(target.id.pid, *target.cupti_copies));
  if (!target.trouble.empty()) json.field("trouble", target.trouble);
}

void write_node(JsonWriter& json, const Session& session) {
  const NodeCounts& node = session.node();
  json.begin_object();
  json.field("shim_files", node.files);
  json.field("same_files", node.same_files + session.probes().counters().duplicate_attaches);
  json.field("files_failed", node.failed);
  json.field("armed_late", node.late);
  json.field("left_out", node.left_out);
  json.field("unreadable", node.unreadable);
  json.field("programs_excluded", session.filter()->programs_refused());
  json.field("records_excluded", session.filter()->records_refused());
  json.end_object();
}

}  // namespace

PcResult pc_result(const Session& session, const join::JoinResult& result, ProcessId id,
                   const join::AssembleStats& assembled) {
  PcResult out;
  out.cubins = session.recorder().device_modules().counts(id);
  for (size_t i = 0; i < result.processes.size(); ++i) {
    const join::ProcessResult& process = result.processes[i];
    if (process.process != id) continue;
    out.accounting = process.lifetime.pc;
    out.windows = process.windows;
    out.period = process.pc_period;
    if (i < assembled.sources.size()) out.sources = assembled.sources[i];
  }
  return out;
}

namespace {

// The sum over all processes.
PcResult pc_total(const Session& session, const join::JoinResult& result,
                  const join::AssembleStats& assembled, const RunSoFar* run) {
  PcResult out;
  bool all_known = true;
  if (run != nullptr && run->ended_processes != 0) {
    out += run->ended_pc;
    all_known = run->ended.pc.emitted.has_value();
  }
  for (const join::ProcessResult& process : result.processes) {
    out += pc_result(session, result, process.process, assembled);
    all_known = all_known && process.lifetime.pc.emitted.has_value();
  }
  if (!all_known) out.accounting.emitted.reset();  // a part of the sum is no sum
  return out;
}

}  // namespace

uint64_t gap_ns(const Controlled& target, const ProcessRecord* record) {
  if (record == nullptr || record->injected_ns == 0 || target.was_running || !target.armed_late)
    return 0;
  const uint64_t armed = target.armed_ns != 0 ? target.armed_ns : target.adopted_ns;
  return armed > record->injected_ns ? armed - record->injected_ns : 0;
}

join::Accounting total_accounting(const join::JoinResult& result, const RunSoFar* run) {
  join::Accounting out;
  bool all_known = true;
  if (run != nullptr && run->ended_processes != 0) {
    out = run->ended;
    all_known = run->ended.emitted.has_value();
  }
  for (const join::ProcessResult& process : result.processes) {
    out += process.lifetime;
    all_known = all_known && process.lifetime.emitted.has_value();
  }
  if (!all_known) out.emitted.reset();  // a part of the sum is no sum
  return out;
}

join::Accounting window_accounting(const join::JoinResult& result) {
  join::Accounting out;
  for (const join::ProcessResult& process : result.processes) out += process.window;
  return out;
}

namespace {

std::string windows_text(const WindowTally& windows) {
  const auto part = [](uint64_t count, const char* what) {
    return count == 0 ? std::string() : ", " + grouped(count) + what;
  };
  return grouped(windows.ended) + ": " + grouped(windows.written) + " written" +
         part(windows.empty, " empty") +
         (windows.unwritten == 0 ? std::string()
                                 : part(windows.unwritten, " not written (") +
                                       grouped(windows.unwritten_executions) + " executions)") +
         part(windows.late, " late");
}

}  // namespace

std::string human_summary(const Session& session, const join::JoinResult& result,
                          const std::string& written, const join::AssembleStats& assembled,
                          const RunSoFar* run) {
  const join::Accounting account = total_accounting(result, run);
  uint64_t stacks = run != nullptr ? run->ended_stacks : 0;
  uint64_t whole = run != nullptr ? run->ended_stacks_whole : 0;
  uint64_t guided = 0;
  const size_t devices = session.recorder().device_count();
  for (const auto& [id, record] : const_cast<Session&>(session).recorder().processes()) {
    stacks += record.stacks_taken;
    whole += record.stack_ends[static_cast<size_t>(unwind::StackEnd::kWhole)];
    guided += record.frames_by_frame_pointer;
  }
  if (run != nullptr) guided += run->ended_frames_guided;
  const auto elapsed = std::chrono::nanoseconds(session.observed_ns());
  std::string out;
  auto row = [&](const char* name, const std::string& text) {
    char head[32];
    std::snprintf(head, sizeof head, "  %-12s", name);
    out += head + text + "\n";
  };
  if (!written.empty() && run == nullptr) out += "gpu-profiled: wrote " + written + "\n";
  if (run != nullptr) row("windows", windows_text(run->windows));
  row("GPU time", human_duration(std::chrono::nanoseconds(account.received_ns)) + " in " +
                      grouped(account.received) + " executions on " + std::to_string(devices) +
                      (devices == 1 ? " device, " : " devices, ") + human_duration(elapsed) +
                      " observed");
  if (account.received > 0)
    row("call paths", "exact " + percent(account.exact_ns, account.received_ns) + ", sampled " +
                          percent(account.sampled_ns, account.received_ns) + ", unmatched " +
                          percent(sum(account.unattributed_ns), account.received_ns));
  if (const std::string text = not_exact(result.stats); !text.empty()) row("not exact", text);
  if (stacks > 0) row("stacks", stacks_text(stacks, whole, guided));
  if (session.options().tier > GPUPROF_TIER_TRACE) {
    for (const auto& [name, text] : pc_rows(pc_total(session, result, assembled, run)))
      row(name, text);
  }
  if (assembled.labels_suppressed > 0)
    row("labels", grouped(assembled.labels_suppressed) +
                      " samples lack a label that has more values than are kept");
  const uint64_t lost = sum(account.lost_ring) + sum(account.lost_shim) + account.evicted;
  row("lost", lost == 0
                  ? "nothing"
                  : grouped(lost) + (lost == 1 ? " execution, " : " executions, ") +
                        percent(lost, lost + account.received) + " (details: --summary-json)");
  if (const std::string missing = not_seen(session.probes().counters()); !missing.empty())
    row("not seen", missing);
  if (const uint64_t late = session.node().late; late > 0)
    row("gap",
        std::to_string(late) + (late == 1 ? " process" : " processes") +
            " with a shim file that was new to gpu-profiled ran a moment before it was armed");
  for (const auto& [id, target] : session.controlled()) {
    const uint64_t gap = gap_ns(target, record_of(session, id));
    if (gap > 0)
      row("gap", "process " + std::to_string(id.pid) + " ran " +
                     human_duration(std::chrono::nanoseconds(gap)) + " before it was armed");
    if (const std::string text = target.gaps.line(id.pid); !text.empty()) row("gap", text);
    if (const std::string text = implausible_line(target, record_of(session, id)); !text.empty())
      row("left out", text);
  }
  for (const std::string& text : cupti_warnings(session)) row("CUPTI", text);
  const std::vector<std::string> taken = gpus_taken(session);
  for (size_t i = 0; i < taken.size() && i < kMostTaken; ++i) row("not sampled", taken[i]);
  if (taken.size() > kMostTaken)
    row("not sampled", std::to_string(taken.size() - kMostTaken) + " more (--summary-json)");
  out += target_table(target_rows(session, result), session.beside_left_out());
  if (!written.empty() && written != "/dev/stdout")
    row("open with", "go tool pprof -http=: " + written);
  return out;
}

namespace {

// What a window alone has: of one target, or of all. How many records the shims produced is known
// of the whole run only.
void write_window_account(JsonWriter& json, const Options& options, const join::Accounting& account,
                          const join::SourceCounts& sources) {
  write_accounting(json, account);
  json.field("received_identity_holds", account.check().empty());
  if (options.tier <= GPUPROF_TIER_TRACE) return;
  json.key("pc_sampling");
  json.begin_object();
  write_pc_samples(json, account.pc, sources);
  json.end_object();
}

// `place` in the result.
void write_target_window(JsonWriter& json, const Options& options, const join::Accounting& account,
                         const RunSoFar& run, size_t place) {
  const auto& sources = run.of_window.sources;
  json.key("window");
  json.begin_object();
  write_window_account(json, options, account,
                       place < sources.size() ? sources[place] : join::SourceCounts());
  json.end_object();
}

void write_windows(JsonWriter& json, const Session& session, const join::JoinResult& result,
                   const RunSoFar& run) {
  json.key("window");
  json.begin_object();
  json.field("index", run.window.index);
  json.field("start_unix_ns", run.window.start_unix_ns);
  json.field("duration_ns", run.window.duration_ns);
  join::SourceCounts sources;
  for (const join::SourceCounts& of_one : run.of_window.sources) sources += of_one;
  write_window_account(json, session.options(), window_accounting(result), sources);
  json.end_object();
  json.key("windows");
  json.begin_object();
  json.field("ended", run.windows.ended);
  json.field("written", run.windows.written);
  json.field("empty", run.windows.empty);
  json.field("waiting", run.windows.waiting);
  json.field("unwritten", run.windows.unwritten);
  json.field("unwritten_executions", run.windows.unwritten_executions);
  json.field("unwritten_gpu_time_ns", run.windows.unwritten_gpu_time_ns);
  json.field("late", run.windows.late);
  json.field("summaries_unwritten", run.windows.summaries_unwritten);
  json.field("longest_pause_ns", run.windows.longest_pause_ns);
  json.end_object();
  json.field("ended_processes", run.ended_processes);
}

}  // namespace

std::string name_profile(std::string summary, const std::string& path) {
  constexpr std::string_view kUnnamed = "\"profile\": \"\"";
  const size_t at = summary.find(kUnnamed);
  if (at == std::string::npos) return summary;
  JsonWriter json;
  json.value(path);
  std::string text = json.take();
  text.pop_back();  // its line's end
  summary.replace(at + kUnnamed.size() - 2, 2, text);
  return summary;
}

std::string json_summary(const Session& session, const join::JoinResult& result,
                         const std::string& written, const join::AssembleStats& assembled,
                         const RunSoFar* run) {
  JsonWriter json;
  json.begin_object();
  json.field("version", kVersion);
  json.field("commit", build::kCommit);
  json.field("profile", written);
  json.field("attach", session.probes().describe());
  json.field("duration_ns", session.observed_ns());
  if (run != nullptr) write_windows(json, session, result, *run);
  json.key("total");
  json.begin_object();
  write_accounting(json, total_accounting(result, run));
  if (session.options().tier > GPUPROF_TIER_TRACE) {
    json.key("pc_sampling");
    json.begin_object();
    write_pc_result(json, pc_total(session, result, assembled, run));
    json.end_object();
  }
  json.end_object();
  json.key("targets");
  json.begin_array();
  for (size_t i = 0; i < result.processes.size(); ++i) {
    const join::ProcessResult& process = result.processes[i];
    json.begin_object();
    json.field("pid", process.process.pid);
    json.field("start_ticks", process.process.start_ticks);
    write_accounting(json, process.lifetime);
    if (run != nullptr) write_target_window(json, session.options(), process.window, *run, i);
    const ProcessRecord* record = record_of(session, process.process);
    if (record != nullptr) write_record(json, *record);
    const auto control = session.controlled().find(process.process);
    if (control != session.controlled().end())
      write_control(json, session.options(), control->second, record,
                    pc_result(session, result, process.process, assembled));
    json.end_object();
  }
  for (const auto& [id, target] : session.controlled()) {  // those that never sent a record
    const ProcessId wanted = id;  // clang 14 captures no structured binding
    const auto same = [&](const join::ProcessResult& process) { return process.process == wanted; };
    if (std::any_of(result.processes.begin(), result.processes.end(), same)) continue;
    json.begin_object();
    json.field("pid", id.pid);
    write_accounting(json, join::Accounting());
    if (run != nullptr)
      write_target_window(json, session.options(), join::Accounting(), *run, SIZE_MAX);
    const ProcessRecord* record = record_of(session, id);
    if (record != nullptr) write_record(json, *record);
    write_control(json, session.options(), target, record,
                  pc_result(session, result, id, assembled));
    json.end_object();
  }
  json.end_array();
  write_targets(json, target_rows(session, result), session.beside_left_out());
  if (session.filter() != nullptr) {
    json.key("node");
    write_node(json, session);
  }
  json.key("symbols");
  write_symbols(json, session.recorder().symbol_counts(), session.recorder().fetcher());
  json.key("join");
  json.begin_object();
  write_join(json, result.stats);
  json.field("programs_refused", const_cast<Session&>(session).recorder().programs_refused());
  json.field("labels_suppressed", assembled.labels_suppressed);
  json.field("unconsumed", const_cast<Session&>(session).recorder().unconsumed());
  json.end_object();
  if (session.options().tier > GPUPROF_TIER_TRACE) {
    json.key("cubin_store");
    write_store(json, session.recorder().device_modules().store().stats());
  }
  json.key("rings");
  write_rings(json, session.probes().counters());
  json.end_object();
  return json.take();
}

std::vector<std::string> profile_comments(const Session& session, const join::JoinResult& result) {
  std::vector<std::string> out;
  out.push_back(std::string("gpu-profiled ") + kVersion + ", commit " + build::kCommit + " (" +
                session.probes().describe() + ")");
  const join::Accounting account = window_accounting(result);
  out.push_back("executions: " + std::to_string(account.received) + " received, " +
                std::to_string(account.exact) + " exact, " + std::to_string(account.sampled) +
                " sampled, " + std::to_string(sum(account.unattributed)) + " unmatched, " +
                std::to_string(sum(account.lost_ring) + sum(account.lost_shim)) + " lost");
  const std::string kernel_module = target::kernel_module_release();
  CudaDriverLines drivers;
  for (const auto& [id, target] : session.controlled())
    drivers.add(id.pid, target::cuda_driver_of(target.status, kernel_module));
  for (std::string& line : drivers.lines()) {
    if (out.size() > 16) break;
    out.push_back(std::move(line));
  }
  for (const auto& [id, target] : session.controlled()) {
    const std::string who = "process " + std::to_string(id.pid);
    if (const uint64_t gap = gap_ns(target, record_of(session, id)); gap > 0)
      out.push_back(who + ": gap of " + human_duration(std::chrono::nanoseconds(gap)) +
                    " before it was armed");
    if (std::string text = target.gaps.line(id.pid); !text.empty()) out.push_back(std::move(text));
    if (!target.trouble.empty()) out.push_back(target.trouble);
    if (out.size() > 64) break;
  }
  for (std::string& line : cupti_warnings(session)) {
    if (out.size() > 64) break;
    out.push_back(std::move(line));
  }
  for (std::string& line : gpus_taken(session)) {
    if (out.size() > 64) break;
    out.push_back(std::move(line));
  }
  return out;
}

}  // namespace gpuprof::cli

// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/pc_report.h"

#include <iterator>

#include "daemon/cli/duration.h"
#include "daemon/cli/report_parts.h"
#include "daemon/cubin/image.h"
#include "daemon/target/module_reader.h"
#include "daemon/target/text.h"

namespace gpuprof::cli {
namespace {

// A wait that is not worth a line, where the GPU was sampled after it.
constexpr uint64_t kShortWaitNs = 1'000'000'000;

// In the order of enum gpuprof_pc_counter.
constexpr const char* kCounterNames[] = {"samples",
                                         "windows",
                                         "drains",
                                         "enables",
                                         "disables",
                                         "healed",
                                         "contexts_refused",
                                         "graph_refused",
                                         "cooperative_refused",
                                         "collective_refused",
                                         "skipped_capture",
                                         "skipped_guard"};
static_assert(std::size(kCounterNames) == GPUPROF_PC_COUNT_SKIPPED_GUARD + 1);

}  // namespace

const char* pc_tier_name(gpuprof_tier tier) {
  switch (tier) {
    case GPUPROF_TIER_CONTINUOUS:
      return "continuous";
    case GPUPROF_TIER_SERIALIZED:
      return "serialized";
    default:
      return "off";
  }
}

PcResult& PcResult::operator+=(const PcResult& other) {
  accounting += other.accounting;
  windows.records += other.windows.records;
  for (size_t i = 0; i < windows.opened.size(); ++i) windows.opened[i] += other.windows.opened[i];
  windows.closed += other.windows.closed;
  windows.duplicates += other.windows.duplicates;
  windows.refused += other.windows.refused;
  windows.opens_lost += other.windows.opens_lost;
  windows.closes_lost += other.windows.closes_lost;
  windows.open += other.windows.open;
  sources += other.sources;
  cubins.in_table += other.cubins.in_table;
  cubins.sampled += other.cubins.sampled;
  cubins.read += other.cubins.read;
  cubins.pending += other.cubins.pending;
  for (size_t i = 0; i < cubins.failed.size(); ++i) cubins.failed[i] += other.cubins.failed[i];
  cubins.keys_refused += other.cubins.keys_refused;
  cubins.read_early += other.cubins.read_early;
  cubins.retries += other.cubins.retries;
  cubins.reread += other.cubins.reread;
  cubins.bytes_read += other.cubins.bytes_read;
  if (period == 0) period = other.period;
  return *this;
}

void write_pc_samples(JsonWriter& json, const join::PcAccounting& account,
                      const join::SourceCounts& sources) {
  json.key("records");
  json.begin_object();
  json.key("produced");
  if (account.emitted)
    json.value(*account.emitted);
  else
    json.null();
  json.field("received", account.records);
  json.key("lost_in_ring");
  write_losses(json, account.lost_ring);
  json.end_object();
  json.key("counts");  // the sums of the records, by what their counters count
  json.begin_object();
  json.field("received", account.counts);
  json.field("samples", account.samples);
  json.field("not_issued", account.not_issued);
  json.field("other", account.other);
  json.field("unnamed", account.unnamed);
  json.field("refused", account.refused);
  json.field("pending", account.pending);
  json.end_object();
  json.key("attribution");
  json.begin_object();
  for (size_t i = 1; i < join::kPcAttribCount; ++i)
    json.field(join::pc_attrib_name(static_cast<join::PcAttrib>(i)), account.attrib[i]);
  json.end_object();
  json.key("source");
  json.begin_object();
  for (size_t i = 1; i < sources.by_status.size(); ++i)
    json.field(cubin::source_status_name(static_cast<cubin::SourceStatus>(i)),
               sources.by_status[i]);
  json.field("folded", sources.folded);
  json.end_object();
  const std::string broken = account.check();
  json.field("identity_holds", broken.empty());
  if (!broken.empty()) json.field("identity_broken", broken);
}

namespace {

void write_windows(JsonWriter& json, const join::WindowCounts& windows) {
  json.key("windows");
  json.begin_object();
  json.field("records", windows.records);
  json.field("opened_continuous", windows.opened[1]);
  json.field("opened_serialized", windows.opened[2]);
  json.field("opened_other", windows.opened[0]);
  json.field("closed", windows.closed);
  json.field("open", windows.open);
  json.field("duplicates", windows.duplicates);
  json.field("refused", windows.refused);
  json.field("opens_lost", windows.opens_lost);
  json.field("closes_lost", windows.closes_lost);
  json.end_object();
}

void write_cubins(JsonWriter& json, const ModuleCounts& cubins) {
  json.key("cubins");
  json.begin_object();
  json.field("in_table", cubins.in_table);
  json.field("sampled", cubins.sampled);
  json.field("read", cubins.read);
  json.field("pending", cubins.pending);
  json.key("failed");
  json.begin_object();
  for (size_t i = 1; i < cubins.failed.size(); ++i)
    json.field(target::module_failure_name(static_cast<target::ModuleFailure>(i)),
               cubins.failed[i]);
  json.end_object();
  json.field("keys_refused", cubins.keys_refused);
  json.field("read_early", cubins.read_early);
  json.field("retries", cubins.retries);
  json.field("reread", cubins.reread);
  json.field("bytes_read", cubins.bytes_read);
  json.end_object();
}

}  // namespace

void write_pc_result(JsonWriter& json, const PcResult& result) {
  write_pc_samples(json, result.accounting, result.sources);
  write_windows(json, result.windows);
  write_cubins(json, result.cubins);
}

namespace {

void write_gpus(JsonWriter& json, const std::vector<target::GpuUse>& gpus) {
  json.key("gpus");
  json.begin_array();
  for (const target::GpuUse& use : gpus) {
    json.begin_object();
    json.field("id", use.device);
    json.field("uuid", target::gpu_uuid(use.gpu));
    json.field("sampled_ns", use.sampled_ns);
    json.field("waited_ns", use.waited_ns);
    json.key("taken_by");
    if (use.taken_by != 0)
      json.value(use.taken_by);
    else
      json.null();
    json.end_object();
  }
  json.end_array();
}

}  // namespace

std::string gpu_line(uint32_t pid, const target::GpuUse& use) {
  if (use.taken_by == 0 || (use.sampled_ns != 0 && use.waited_ns < kShortWaitNs)) return {};
  const std::string who = "process " + std::to_string(pid);
  const std::string gpu = "GPU " + std::to_string(use.device);
  const std::string holder = " in process " + std::to_string(use.taken_by);
  if (use.sampled_ns == 0)
    return who + ": " + gpu + " is PC-sampled" + holder +
           "; one process a GPU at a time; this one is traced: use --pid " + std::to_string(pid) +
           " alone to sample it";
  return who + ": " + gpu + " was PC-sampled" + holder + " for " +
         human_duration(std::chrono::nanoseconds(use.waited_ns)) + ", and here for " +
         human_duration(std::chrono::nanoseconds(use.sampled_ns)) + "; one process a GPU at a time";
}

void write_pc_sampling(JsonWriter& json, const Options& options, const target::PcStatus& pc,
                       const PcCounters& before, const std::vector<target::GpuUse>& gpus,
                       const PcResult& result) {
  json.key("pc_sampling");
  json.begin_object();
  json.field("asked", pc_tier_name(options.tier));
  json.field("state", target::pc_state_name(pc.state));
  json.field("reason", target::pc_reason_name(pc.reason));
  if (!pc.reason_text.empty()) json.field("text", pc.reason_text);
  json.field("period_log2_cycles", pc.period != 0 ? pc.period : result.period);
  json.field("contexts", pc.contexts);
  write_gpus(json, gpus);
  json.key("shim");  // the shim's own counts
  json.begin_object();
  for (size_t i = 0; i < std::size(kCounterNames); ++i)
    json.field(kCounterNames[i], pc.counters[i] > before[i] ? pc.counters[i] - before[i] : 0);
  json.end_object();
  write_pc_result(json, result);
  json.end_object();
}

void write_store(JsonWriter& json, const cubin::StoreStats& stats) {
  json.begin_object();
  json.field("images", stats.images);
  json.field("bytes", stats.bytes);
  json.field("raw_bytes", stats.raw_bytes);
  json.field("evicted", stats.evicted);
  json.field("malformed", stats.malformed);
  json.end_object();
}

std::vector<std::pair<const char*, std::string>> pc_rows(const PcResult& result) {
  const uint64_t samples = result.accounting.samples;
  std::vector<std::pair<const char*, std::string>> out;
  std::string head = grouped(samples);
  if (result.period != 0) head += ", one every 2^" + std::to_string(result.period) + " cycles";
  out.emplace_back("PC samples", head);
  if (samples == 0) return out;
  auto shares = [&](auto&& name, const auto& values, size_t first) {
    std::string text;
    for (size_t i = first; i < values.size(); ++i) {
      if (values[i] == 0) continue;
      if (!text.empty()) text += ", ";
      text += std::string(name(i)) + " " + percent(values[i], samples);
    }
    return text;
  };
  out.emplace_back(
      "lines",
      shares(
          [](size_t i) { return cubin::source_status_name(static_cast<cubin::SourceStatus>(i)); },
          result.sources.by_status, 1));
  out.emplace_back(
      "attribution",
      shares([](size_t i) { return join::pc_attrib_name(static_cast<join::PcAttrib>(i)); },
             result.accounting.attrib, 1));
  return out;
}

}  // namespace gpuprof::cli

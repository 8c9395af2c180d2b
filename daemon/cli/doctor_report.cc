// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/doctor_report.h"

#include <cstdio>

#include "daemon/cli/report_parts.h"
#include "daemon/doctor/cupti_users.h"

namespace gpuprof::cli {
namespace {

constexpr const char* kRow = "%8s  %-12s  %-15s  ";
constexpr size_t kIndent = 41;  // of what follows a row

void row(std::string& out, const char* pid, const char* state, const char* comm,
         const std::string& text) {
  char head[96];
  std::snprintf(head, sizeof head, kRow, pid, state, comm);
  out += head + text + "\n";
}

// What a ready process runs on.
std::string versions_of(const ProcessCheck& process) {
  std::string out;
  const auto& status = process.status;
  if (status && !status->cupti_path.empty())
    out = "CUPTI " + doctor::cupti_version_text(status->cupti_version) + " by " +
          status->cupti_path + " (" + target::cupti_origin_name(status->cupti_origin) + "'s)";
  if (const std::string driver = target::describe(process.driver); !driver.empty())
    out += (out.empty() ? "" : ", ") + driver;
  return out;
}

void write_page(JsonWriter& json, const ProcessCheck& process) {
  const target::ShimStatus& status = *process.status;
  json.key("cupti");
  json.begin_object();
  json.field("version", doctor::cupti_version_text(status.cupti_version));
  json.field("api", status.cupti_version);
  json.field("path", status.cupti_path);
  json.field("origin", target::cupti_origin_name(status.cupti_origin));
  json.key("limits");
  json.begin_array();
  for (const doctor::CuptiLimit& limit :
       doctor::cupti_limits(status.cupti_version, status.driver_version))
    json.value(limit.name);
  json.end_array();
  json.end_object();
  json.key("pc_sampling");
  json.begin_object();
  json.field("state", target::pc_state_name(status.pc.state));
  json.field("reason", target::pc_reason_name(status.pc.reason));
  json.end_object();
  json.field("shim_state", target::state_name(status.state));
  json.field("executions", status.probe_totals[GPUPROF_PROBE_EXEC]);
  json.field("launches", status.drop_totals[GPUPROF_DROP_LAUNCHES_SEEN]);
  json.field("arms", status.arms);
}

void write_process(JsonWriter& json, const ProcessCheck& process) {
  json.begin_object();
  json.field("pid", process.pid);
  json.field("parent", process.parent);
  json.field("comm", process.comm);
  json.field("state", verdict_name(process.verdict));
  json.field("ready", is_ready(process.verdict));
  json.field("finding", process.text);
  if (process.verdict == Verdict::kBroken)
    json.field("cause", doctor::library_fault_name(process.fault));
  json.key("warnings");
  json.begin_array();
  for (const std::string& warning : process.warnings) json.value(warning);
  json.end_array();
  json.field("shim", process.shim);
  json.key("cuda_driver");
  write_cuda_driver(json, process.driver);
  if (process.status) write_page(json, process);
  if (process.controller) {
    json.key("controller");
    json.begin_object();
    json.field("name", process.controller->name);
    json.field("pid", process.controller->pid);
    json.end_object();
  }
  if (!process.cupti_users.empty()) {
    json.key("cupti_users");
    json.begin_array();
    for (const std::string& tool : process.cupti_users) json.value(tool);
    json.end_array();
  }
  json.end_object();
}

}  // namespace

std::string process_table(std::span<const ProcessCheck> processes, Versions versions) {
  std::string out;
  row(out, "PID", "STATE", "COMMAND", "FINDING");
  for (const ProcessCheck& process : processes) {
    row(out, std::to_string(process.pid).c_str(), verdict_name(process.verdict),
        process.comm.c_str(), process.text);
    const std::string below(kIndent, ' ');
    if (versions == Versions::kNone) {
      // The summary has them.
    } else if (is_ready(process.verdict)) {
      if (const std::string text = versions_of(process); !text.empty()) out += below + text + "\n";
    } else if (process.verdict != Verdict::kNoCuda) {
      const std::string driver = target::describe(process.driver);
      if (!driver.empty()) out += below + driver + "\n";
    }
    for (const std::string& warning : process.warnings) out += below + "warning: " + warning + "\n";
  }
  return out;
}

void write_processes(JsonWriter& json, std::span<const ProcessCheck> processes) {
  json.begin_array();
  for (const ProcessCheck& process : processes) write_process(json, process);
  json.end_array();
}

}  // namespace gpuprof::cli

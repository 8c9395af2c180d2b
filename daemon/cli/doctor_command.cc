// SPDX-License-Identifier: Apache-2.0
//
// gpu-profiled doctor: is this host, or are processes and their children, profilable, and if not,
// why.
#include <algorithm>
#include <cstdio>
#include <optional>

#include "daemon/cli/command_line.h"
#include "daemon/cli/doctor_report.h"
#include "daemon/cli/exit_code.h"
#include "daemon/cli/host_check.h"
#include "daemon/cli/process_check.h"
#include "daemon/cli/version.h"

namespace gpuprof::cli {
namespace {

// So long launches may stay without a record; CUPTI's are asked for every 100 ms.
constexpr uint32_t kRecordPatienceMs = 2000;

struct Findings {
  std::vector<ProcessCheck> processes;  // each once
  std::vector<Error> failures;          // of a named process
  std::optional<HostCheck> host;        // where no process is named
  bool ready = true;
};

// Ready: something in it can be profiled, and nothing that uses CUDA cannot.
bool tree_is_ready(const std::vector<ProcessCheck>& tree) {
  const auto ready = [](const ProcessCheck& process) { return is_ready(process.verdict); };
  const auto refused = [](const ProcessCheck& process) { return is_refused(process.verdict); };
  return std::ranges::any_of(tree, ready) && std::ranges::none_of(tree, refused);
}

Findings look(const std::vector<uint32_t>& pids) {
  Findings out;
  if (pids.empty()) {
    out.host = check_host();
    out.ready = out.host->refusals.empty();
  }
  const std::string kernel_module = target::kernel_module_release();
  for (const uint32_t pid : pids) {
    auto tree = check_tree(pid, kernel_module);
    if (!tree) {
      out.failures.push_back(tree.error());
      out.ready = false;
      continue;
    }
    recheck_unrecorded(*tree, kRecordPatienceMs);
    out.ready = out.ready && tree_is_ready(*tree);
    for (ProcessCheck& process : *tree) {
      const uint32_t number = process.pid;
      const auto same = [&](const ProcessCheck& known) { return known.pid == number; };
      if (std::ranges::none_of(out.processes, same)) out.processes.push_back(std::move(process));
    }
  }
  return out;
}

std::string json_of(const Findings& findings) {
  JsonWriter json;
  json.begin_object();
  json.field("version", kVersion);
  json.field("commit", build::kCommit);
  json.field("ready", findings.ready);
  if (findings.host) {
    json.key("host");
    write_host(json, *findings.host);
  }
  json.key("processes");
  write_processes(json, findings.processes);
  json.key("errors");
  json.begin_array();
  for (const Error& failure : findings.failures) json.value(failure.message);
  json.end_array();
  json.end_object();
  return json.take();
}

}  // namespace

int doctor_command(const Options& options, Console& console) {
  const Findings findings = look(options.pids);
  std::string text;
  if (options.doctor_json) {
    text = json_of(findings);
  } else if (findings.host) {
    text = host_table(*findings.host);
  } else if (!findings.processes.empty()) {
    text = process_table(findings.processes);
  }
  for (const Error& failure : findings.failures) console.line(failure.message);
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) {
    console.line("the findings could not be written to standard output");
    return kExitFailure;
  }
  return findings.ready ? 0 : kExitNothingProfiled;
}

}  // namespace gpuprof::cli

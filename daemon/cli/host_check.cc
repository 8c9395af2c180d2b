// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/host_check.h"

#include <sys/capability.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <string_view>

#include "daemon/cli/diagnose.h"
#include "daemon/probe/kernel_features.h"
#include "daemon/probe/probe_session.h"

namespace gpuprof::cli {
namespace {

// Every record of a session that attaches to nothing.
class NoRecords final : public probe::EventSink {
 public:
  using Source = probe::EventSource;
  void on_process(const Source&, const gpuprof_process_v1&) override {}
  void on_launch(const Source&, const gpuprof_launch_v1&, const StackSample*) override {}
  void on_execs(const Source&, std::span<const gpuprof_exec_v1>) override {}
  void on_pc_samples(const Source&, std::span<const gpuprof_pc_sample_v1>) override {}
  void on_name(const Source&, uint32_t, uint64_t, std::string_view) override {}
  void on_modules(const Source&, std::span<const gpuprof_module_v1>) override {}
  void on_device(const Source&, const gpuprof_device_v1&) override {}
  void on_window(const Source&, const gpuprof_window_v1&) override {}
  void on_drop(const Source&, const gpuprof_drop_v1&) override {}
  void on_loss(ProcessId, uint32_t, uint64_t, probe::LossReason) override {}
};

std::string number_or_unknown(const std::optional<int64_t>& number) {
  return number ? std::to_string(*number) : "not to be seen";
}

std::string seccomp_text(int64_t mode) {
  return mode == 0 ? "off" : mode == 1 ? "strict" : "filter";
}

std::string memlock_text(uint64_t bytes) {
  return bytes == RLIM_INFINITY ? "unlimited" : std::to_string(bytes >> 10) + " KiB";
}

std::string gpu_text(const doctor::GpuFacts& gpu) {
  std::string out = (gpu.model.empty() ? "a GPU" : gpu.model) + ", " + gpu.bus;
  if (!gpu.uuid.empty()) out += ", " + gpu.uuid;
  if (gpu.is_virtual) out += ", a vGPU";
  if (gpu.mig_instances > 0)
    out += ", MIG with " + std::to_string(gpu.mig_instances) +
           (gpu.mig_instances == 1 ? " instance" : " instances");
  return out;
}

std::string capabilities_text(const HostCheck& host, bool held) {
  std::string out;
  for (const auto& [name, has] : host.capabilities) {
    if (has == held) out += (out.empty() ? "" : ", ") + std::string(name);
  }
  return out.empty() ? "none" : out;
}

void row(std::string& out, const char* name, const std::string& text) {
  char head[32];
  std::snprintf(head, sizeof head, "  %-20s  ", name);
  out += head + text + "\n";
}

void write_number(JsonWriter& json, const char* name, const std::optional<int64_t>& number) {
  json.key(name);
  if (number) {
    json.value(*number);
  } else {
    json.null();
  }
}

void write_gpus(JsonWriter& json, const doctor::HostFacts& facts) {
  json.key("gpus");
  json.begin_array();
  for (const doctor::GpuFacts& gpu : facts.gpus) {
    json.begin_object();
    json.field("model", gpu.model);
    json.field("uuid", gpu.uuid);
    json.field("bus", gpu.bus);
    json.field("vgpu", gpu.is_virtual);
    json.field("mig_instances", gpu.mig_instances);
    json.end_object();
  }
  json.end_array();
}

void write_lines(JsonWriter& json, const char* name, const std::vector<std::string>& lines) {
  json.key(name);
  json.begin_array();
  for (const std::string& line : lines) json.value(line);
  json.end_array();
}

void check_attach(HostCheck& host) {
  if (auto ok = check_capabilities(); !ok) {
    host.refusals.push_back(ok.error().message);
    return;
  }
  NoRecords sink;
  auto session = probe::ProbeSession::create({}, sink);
  if (!session) {
    host.refusals.push_back(session.error().message);
    return;
  }
  host.attach = (*session)->describe();
  if (!(*session)->uses_perf_uprobes()) return;
  if (probe::has_capability(CAP_SYS_ADMIN)) {
    host.warnings.emplace_back(
        "this kernel has no uprobe_multi (Linux 6.6): CAP_SYS_ADMIN is needed, and kept");
  } else {
    host.refusals.emplace_back(
        "this kernel has no uprobe_multi (Linux 6.6), and without it attaching needs "
        "CAP_SYS_ADMIN: "
        "run gpu-profiled with sudo (in a container: --cap-add SYS_ADMIN)");
  }
}

}  // namespace

std::vector<std::string> host_warnings(const doctor::HostFacts& facts) {
  std::vector<std::string> out;
  const std::string no_sampling = " (--pc-sampling); tracing works";
  if (facts.kernel_module.empty() && !facts.tegra && !facts.wsl)
    out.push_back(
        facts.gpus_on_bus > 0
            ? "an NVIDIA GPU is on the bus and its kernel module is not loaded: install the "
              "driver, or load it (modprobe nvidia)"
            : "neither an NVIDIA GPU nor its driver is to be seen, so no CUDA program can "
              "run here");
  bool vgpu = false, mig = false;
  for (const doctor::GpuFacts& gpu : facts.gpus) {
    vgpu = vgpu || gpu.is_virtual;
    mig = mig || gpu.mig_instances > 0;
  }
  // The platform is named before permissions: no permission helps against it.
  if (facts.wsl) out.push_back("this is WSL, where instructions cannot be sampled" + no_sampling);
  if (!facts.confidential.empty())
    out.push_back("this is a confidential virtual machine (" + facts.confidential +
                  "): on a GPU in confidential-computing mode instructions cannot be sampled" +
                  no_sampling);
  if (vgpu)
    out.push_back(
        "a GPU here is virtual: its instructions can be sampled only where the host's vGPU "
        "configuration enables profiling" +
        no_sampling);
  if (mig)
    out.push_back("MIG is on: on instances that share a GPU instructions may not be sampled" +
                  no_sampling);
  if (facts.mps)
    out.push_back(
        "MPS runs here: the instructions of its clients cannot be sampled: stop it "
        "(echo quit | nvidia-cuda-mps-control)" +
        no_sampling);
  if (facts.admin_only.value_or(false))
    out.push_back("no --pc-sampling in processes without CAP_SYS_ADMIN: " +
                  std::string(kAdminOnlyRemedy));
  if (facts.nested_pids)
    out.emplace_back(
        "this is a pid namespace of its own, and processes outside of it cannot be seen: run on "
        "the "
        "host, or with hostPID: true (docker run --pid host)");
  return out;
}

HostCheck check_host() {
  HostCheck out;
  out.facts = doctor::read_host();
  out.btf = ::access("/sys/kernel/btf/vmlinux", R_OK) == 0;
  constexpr std::pair<const char*, int> kCapabilities[] = {
      {"CAP_BPF", CAP_BPF},
      {"CAP_PERFMON", CAP_PERFMON},
      {"CAP_SYS_PTRACE", CAP_SYS_PTRACE},
      {"CAP_DAC_READ_SEARCH", CAP_DAC_READ_SEARCH},
      {"CAP_CHECKPOINT_RESTORE", CAP_CHECKPOINT_RESTORE},
      {"CAP_SYSLOG", CAP_SYSLOG},
      {"CAP_SYS_ADMIN", CAP_SYS_ADMIN}};
  for (const auto& [name, number] : kCapabilities)
    out.capabilities.emplace_back(name, probe::has_capability(number));
  check_attach(out);
  for (std::string& line : host_warnings(out.facts)) out.warnings.push_back(std::move(line));
  return out;
}

std::string host_table(const HostCheck& host) {
  const doctor::HostFacts& facts = host.facts;
  std::string out = host.refusals.empty()
                        ? "this host can be profiled\n"
                        : "this host cannot be profiled as gpu-profiled runs now\n";
  for (const std::string& line : host.refusals) out += "  refused: " + line + "\n";
  for (const std::string& line : host.warnings) out += "  warning: " + line + "\n";
  row(out, "kernel", facts.kernel);
  row(out, "attach", host.attach.empty() ? "not to be seen (refused, see above)" : host.attach);
  row(out, "BTF", host.btf ? "/sys/kernel/btf/vmlinux" : "none");
  row(out, "tracefs", facts.tracefs ? "mounted" : "not mounted (not needed)");
  row(out, "lockdown", facts.lockdown.empty() ? "not to be seen" : facts.lockdown);
  row(out, "capabilities", capabilities_text(host, true));
  row(out, "without", capabilities_text(host, false));
  row(out, "perf_event_paranoid", number_or_unknown(facts.perf_event_paranoid));
  row(out, "unprivileged BPF", facts.unprivileged_bpf_disabled == 0 ? "allowed" : "disabled");
  row(out, "seccomp",
      seccomp_text(facts.seccomp) + (facts.no_new_privileges ? ", no new privileges" : ""));
  row(out, "memlock", memlock_text(facts.memlock_bytes));
  row(out, "NVIDIA driver",
      facts.tegra                   ? "Tegra's"
      : facts.wsl                   ? "WSL's"
      : facts.kernel_module.empty() ? "none"
                                    : facts.kernel_module);
  row(out, "RmProfilingAdminOnly",
      facts.admin_only ? (*facts.admin_only ? "1" : "0") : "not to be seen");
  for (const doctor::GpuFacts& gpu : facts.gpus) row(out, "GPU", gpu_text(gpu));
  if (facts.gpus.empty())
    row(out, "GPUs",
        facts.gpus_on_bus == 0
            ? "none"
            : std::to_string(facts.gpus_on_bus) + " on the bus, without a driver");
  row(out, "MPS", facts.mps ? "runs" : "no");
  row(out, "confidential VM", facts.confidential.empty() ? "no" : facts.confidential);
  return out;
}

void write_host(JsonWriter& json, const HostCheck& host) {
  const doctor::HostFacts& facts = host.facts;
  json.begin_object();
  write_lines(json, "refusals", host.refusals);
  write_lines(json, "warnings", host.warnings);
  json.field("kernel", facts.kernel);
  json.field("attach", host.attach);
  json.field("btf", host.btf);
  json.field("tracefs", facts.tracefs);
  json.field("lockdown", facts.lockdown);
  json.key("capabilities");
  json.begin_object();
  for (const auto& [name, has] : host.capabilities) json.field(name, has);
  json.end_object();
  write_number(json, "perf_event_paranoid", facts.perf_event_paranoid);
  write_number(json, "unprivileged_bpf_disabled", facts.unprivileged_bpf_disabled);
  json.field("seccomp", seccomp_text(facts.seccomp));
  json.field("no_new_privileges", facts.no_new_privileges);
  write_number(json, "memlock_bytes",
               facts.memlock_bytes == RLIM_INFINITY
                   ? std::nullopt
                   : std::optional(static_cast<int64_t>(facts.memlock_bytes)));
  json.field("nested_pids", facts.nested_pids);
  json.field("kernel_module", facts.kernel_module);
  json.key("admin_only");
  if (facts.admin_only) {
    json.value(*facts.admin_only);
  } else {
    json.null();
  }
  write_gpus(json, facts);
  json.field("gpus_on_bus", facts.gpus_on_bus);
  json.field("mps", facts.mps);
  json.field("wsl", facts.wsl);
  json.field("tegra", facts.tegra);
  json.field("confidential", facts.confidential);
  json.end_object();
}

}  // namespace gpuprof::cli

// SPDX-License-Identifier: Apache-2.0
#include "daemon/doctor/host.h"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/vfs.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <string_view>

#include "daemon/target/cuda_driver.h"
#include "daemon/target/process.h"
#include "daemon/target/text.h"

namespace gpuprof::doctor {
namespace {

constexpr size_t kMostEntries = 4096;        // of a directory
constexpr ino_t kInitialPidNs = 0xEFFFFFFC;  // PROC_PID_INIT_INO
constexpr long kTracefsMagic = 0x74726163;   // TRACEFS_MAGIC
constexpr const char* kMpsDaemon = "nvidia-cuda-mps-control";
constexpr const char* kNvidia = "0x10de";

std::string text_of(const std::string& path) {
  auto text = target::read_proc_file(path, 65536);
  return text ? *text : std::string();
}

std::string_view first_line(std::string_view text) { return text.substr(0, text.find('\n')); }

std::optional<int64_t> number_of(std::string_view text) {
  int64_t out = 0;
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() ? std::optional(out) : std::nullopt;
}

// The rest of the line that begins with `key`, without the blanks around it; empty: none.
std::string value_of(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    std::string_view line = first_line(text);
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (!line.starts_with(key)) continue;
    line.remove_prefix(key.size());
    line.remove_prefix(std::min(line.find_first_not_of(" \t:"), line.size()));
    return target::printable(line.substr(0, line.find_last_not_of(" \t") + 1));
  }
  return {};
}

std::vector<std::string> entries_of(const std::string& path) {
  struct CloseDir {
    void operator()(DIR* dir) const { ::closedir(dir); }
  };
  std::vector<std::string> out;
  const std::unique_ptr<DIR, CloseDir> dir(::opendir(path.c_str()));
  while (const dirent* entry = dir && out.size() < kMostEntries ? ::readdir(dir.get()) : nullptr) {
    if (entry->d_name[0] != '.') out.emplace_back(entry->d_name);
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::string lockdown_of(const std::string& text) {
  const size_t open = text.find('['), close = text.find(']');
  if (open == std::string::npos || close == std::string::npos || close < open) return {};
  return target::printable(text.substr(open + 1, close - open - 1), 32);
}

bool is_tracefs(const std::string& path) {
  struct statfs info = {};
  return ::statfs(path.c_str(), &info) == 0 && info.f_type == kTracefsMagic;
}

uint32_t mig_instances(const std::string& root, size_t gpu) {
  uint32_t out = 0;
  for (const std::string& name :
       entries_of(root + "/proc/driver/nvidia/capabilities/gpu" + std::to_string(gpu) + "/mig")) {
    if (name.starts_with("gi")) ++out;
  }
  return out;
}

std::vector<GpuFacts> gpus_of(const std::string& root) {
  std::vector<GpuFacts> out;
  const std::string folder = root + "/proc/driver/nvidia/gpus/";
  for (const std::string& bus : entries_of(folder)) {
    const std::string text = text_of(folder + bus + "/information");
    GpuFacts gpu = parse_gpu(text);
    if (gpu.bus.empty()) gpu.bus = target::printable(bus);
    const auto minor = number_of(value_of(text, "Device Minor"));
    gpu.mig_instances =
        mig_instances(root, minor && *minor >= 0 ? static_cast<size_t>(*minor) : out.size());
    out.push_back(std::move(gpu));
  }
  return out;
}

uint32_t gpus_on_bus(const std::string& root) {
  uint32_t out = 0;
  const std::string folder = root + "/sys/bus/pci/devices/";
  for (const std::string& device : entries_of(folder)) {
    // Class 03: display controllers, 3D controllers (0302) among them.
    if (first_line(text_of(folder + device + "/vendor")) == kNvidia &&
        text_of(folder + device + "/class").starts_with("0x03"))
      ++out;
  }
  return out;
}

bool has_mps(const std::string& root) {
  for (const std::string& name : entries_of(root + "/proc")) {
    if (name[0] < '0' || name[0] > '9') continue;
    const std::string command = text_of(root + "/proc/" + name + "/cmdline");
    const std::string program = command.substr(0, command.find('\0'));
    if (program.substr(program.rfind('/') + 1) == kMpsDaemon) return true;
  }
  return false;
}

std::string confidential_kind(const std::string& root) {
  struct stat info = {};
  const std::string flags = " " + value_of(text_of(root + "/proc/cpuinfo"), "flags") + " ";
  if (flags.find(" tdx_guest ") != std::string::npos ||
      ::stat((root + "/dev/tdx_guest").c_str(), &info) == 0)
    return "TDX";
  if (::stat((root + "/dev/sev-guest").c_str(), &info) == 0) return "SEV-SNP";
  return {};
}

void read_ourselves(const std::string& root, HostFacts& out) {
  const std::string status = text_of(root + "/proc/self/status");
  out.seccomp = number_of(value_of(status, "Seccomp:")).value_or(0);
  out.no_new_privileges = number_of(value_of(status, "NoNewPrivs:")).value_or(0) != 0;
  rlimit limit = {};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0) out.memlock_bytes = limit.rlim_cur;
  struct stat info = {};
  out.nested_pids = ::stat("/proc/self/ns/pid", &info) == 0 && info.st_ino != kInitialPidNs;
}

}  // namespace

bool is_vgpu_model(const std::string& model) {
  // A profile's name: "-48Q", "-8C", of one on MIG "-4-20C" (NVIDIA's vGPU types A, B, C and Q).
  if (model.size() < 3 || std::string_view("ABCQ").find(model.back()) == std::string_view::npos)
    return false;
  const size_t dash = model.find_last_not_of("0123456789", model.size() - 2);
  return dash != std::string::npos && dash < model.size() - 2 && model[dash] == '-';
}

GpuFacts parse_gpu(const std::string& information) {
  GpuFacts out;
  out.model = value_of(information, "Model");
  out.uuid = value_of(information, "GPU UUID");
  out.bus = value_of(information, "Bus Location");
  out.is_virtual = is_vgpu_model(out.model);
  return out;
}

HostFacts read_host(const std::string& root) {
  HostFacts out;
  utsname name = {};
  if (::uname(&name) == 0) out.kernel = target::printable(name.release);
  if (const std::string release = text_of(root + "/proc/sys/kernel/osrelease"); !release.empty())
    out.kernel = target::printable(first_line(release));
  out.wsl = out.kernel.find("microsoft") != std::string::npos ||
            out.kernel.find("Microsoft") != std::string::npos;
  out.lockdown = lockdown_of(text_of(root + "/sys/kernel/security/lockdown"));
  out.tracefs =
      is_tracefs(root + "/sys/kernel/tracing") || is_tracefs(root + "/sys/kernel/debug/tracing");
  const std::string sysctl = root + "/proc/sys/kernel/";
  out.perf_event_paranoid = number_of(text_of(sysctl + "perf_event_paranoid"));
  out.unprivileged_bpf_disabled = number_of(text_of(sysctl + "unprivileged_bpf_disabled"));
  read_ourselves(root, out);
  out.kernel_module = target::kernel_module_release(root);
  if (const auto value = number_of(
          value_of(text_of(root + "/proc/driver/nvidia/params"), "RmProfilingAdminOnly:")))
    out.admin_only = *value != 0;
  out.gpus = gpus_of(root);
  out.gpus_on_bus = gpus_on_bus(root);
  out.mps = has_mps(root);
  if (auto folder = target::open_root(root.empty() ? "/" : root))
    out.tegra = target::is_tegra(*folder);
  out.confidential = confidential_kind(root);
  return out;
}

}  // namespace gpuprof::doctor

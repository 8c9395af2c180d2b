// SPDX-License-Identifier: Apache-2.0
//
// HostFacts: what this machine, and the container we run in, offer to a profiler, without loading
// the driver.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gpuprof::doctor {

// As /proc/driver/nvidia tells it.
struct GpuFacts {
  std::string model;
  std::string uuid;
  std::string bus;
  bool is_virtual = false;     // a vGPU of a virtual machine, by its model's name ("A40-48Q")
  uint32_t mig_instances = 0;  // GPU instances; 0: MIG is off, or none was made
};

struct HostFacts {
  std::string kernel;    // uname -r
  std::string lockdown;  // "none", "integrity", "confidentiality"; empty: not told
  bool tracefs = false;
  std::optional<int64_t> perf_event_paranoid;
  std::optional<int64_t> unprivileged_bpf_disabled;
  int64_t seccomp = 0;  // of ourselves: 0 off, 1 strict, 2 a filter
  bool no_new_privileges = false;
  uint64_t memlock_bytes = 0;      // RLIM_INFINITY: no limit
  bool nested_pids = false;        // processes outside of our pid namespace are hidden from us
  std::string kernel_module;       // the NVIDIA driver's release; empty: not loaded, or Tegra, WSL
  std::optional<bool> admin_only;  // RmProfilingAdminOnly
  std::vector<GpuFacts> gpus;
  uint32_t gpus_on_bus = 0;  // NVIDIA GPUs on PCI, with a driver or without
  bool mps = false;          // a control daemon of MPS runs
  bool wsl = false;
  bool tegra = false;
  std::string confidential;  // "TDX", "SEV-SNP": the virtual machine's kind; empty: none
};

// Reads files below `root` (tests: a made-up one), the limits and namespaces of this process.
HostFacts read_host(const std::string& root = "");

// Parts of it, for the tests.
GpuFacts parse_gpu(const std::string& information);
bool is_vgpu_model(const std::string& model);

}  // namespace gpuprof::doctor

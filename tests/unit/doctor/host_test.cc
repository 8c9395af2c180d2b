// SPDX-License-Identifier: Apache-2.0
#include "daemon/doctor/host.h"

#include <gtest/gtest.h>

#include "tests/unit/doctor/made_up_root.h"

namespace gpuprof::doctor {
namespace {

// As the driver 580 writes it.
const char* const kInformation =
    "Model: \t\t NVIDIA H200\nIRQ:   \t\t 42\nGPU UUID: \t "
    "GPU-5b2f1f6c-8f4d-4f2e-9d3c-000000000001\nVideo BIOS: \t 96.00.b8.00.01\nBus Type: \t PCIe\n"
    "Bus Location: \t 0000:18:00.0\nDevice Minor: \t 1\nGPU Excluded:\t No\n";

class HostTest : public MadeUpRoot {};

TEST_F(HostTest, AnEmptyRootTellsNothing) {
  const HostFacts facts = read_host(root_);
  EXPECT_FALSE(facts.kernel.empty()) << "uname";
  EXPECT_EQ(facts.lockdown, "");
  EXPECT_FALSE(facts.tracefs || facts.perf_event_paranoid || facts.admin_only || facts.mps ||
               facts.wsl || facts.tegra);
  EXPECT_EQ(facts.kernel_module, "");
  EXPECT_TRUE(facts.gpus.empty());
  EXPECT_EQ(facts.gpus_on_bus, 0u);
  EXPECT_EQ(facts.confidential, "");
}

TEST_F(HostTest, KernelSettings) {
  write("/proc/sys/kernel/osrelease", "6.1.0-13-amd64\n");
  write("/proc/sys/kernel/perf_event_paranoid", "-1\n");
  write("/proc/sys/kernel/unprivileged_bpf_disabled", "2\n");
  write("/sys/kernel/security/lockdown", "none [integrity] confidentiality\n");
  write("/proc/self/status", "Name:\tx\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t3\n");
  const HostFacts facts = read_host(root_);
  EXPECT_EQ(facts.kernel, "6.1.0-13-amd64");
  EXPECT_EQ(facts.perf_event_paranoid, -1);
  EXPECT_EQ(facts.unprivileged_bpf_disabled, 2);
  EXPECT_EQ(facts.lockdown, "integrity");
  EXPECT_EQ(facts.seccomp, 2);
  EXPECT_TRUE(facts.no_new_privileges);
}

TEST_F(HostTest, DriverAndGpus) {
  write("/sys/module/nvidia/version", "580.159.04\n");
  write("/proc/driver/nvidia/params", "EnableMSI: 1\nRmProfilingAdminOnly: 1\n");
  write("/proc/driver/nvidia/gpus/0000:18:00.0/information", kInformation);
  write("/proc/driver/nvidia/capabilities/gpu1/mig/gi1/access", "");
  write("/proc/driver/nvidia/capabilities/gpu1/mig/gi2/access", "");
  write("/sys/bus/pci/devices/0000:18:00.0/vendor", "0x10de\n");
  write("/sys/bus/pci/devices/0000:18:00.0/class", "0x030200\n");
  write("/sys/bus/pci/devices/0000:19:00.0/vendor", "0x10de\n");
  write("/sys/bus/pci/devices/0000:19:00.0/class", "0x068000\n");  // an NVSwitch
  write("/sys/bus/pci/devices/0000:20:00.0/vendor", "0x1a03\n");
  write("/sys/bus/pci/devices/0000:20:00.0/class", "0x030000\n");
  const HostFacts facts = read_host(root_);
  EXPECT_EQ(facts.kernel_module, "580.159.04");
  EXPECT_EQ(facts.admin_only, true);
  EXPECT_EQ(facts.gpus_on_bus, 1u);
  ASSERT_EQ(facts.gpus.size(), 1u);
  EXPECT_EQ(facts.gpus[0].model, "NVIDIA H200");
  EXPECT_EQ(facts.gpus[0].uuid, "GPU-5b2f1f6c-8f4d-4f2e-9d3c-000000000001");
  EXPECT_EQ(facts.gpus[0].bus, "0000:18:00.0");
  EXPECT_EQ(facts.gpus[0].mig_instances, 2u) << "by its minor number";
  EXPECT_FALSE(facts.gpus[0].is_virtual);
}

TEST_F(HostTest, Platforms) {
  write("/proc/sys/kernel/osrelease", "5.15.153.1-microsoft-standard-WSL2\n");
  write("/proc/77/cmdline", std::string("/usr/bin/nvidia-cuda-mps-control\0-d\0", 36));
  write("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu tdx_guest vme\n");
  write("/etc/nv_tegra_release", "# R35 (release), REVISION: 4.1\n");
  const HostFacts facts = read_host(root_);
  EXPECT_TRUE(facts.wsl);
  EXPECT_TRUE(facts.mps);
  EXPECT_TRUE(facts.tegra);
  EXPECT_EQ(facts.confidential, "TDX");
  std::filesystem::remove(root_ + "/proc/cpuinfo");
  write("/dev/sev-guest", "");
  EXPECT_EQ(read_host(root_).confidential, "SEV-SNP");
}

TEST(VgpuModel, ByTheNameOfItsProfile) {
  for (const char* model : {"NVIDIA A40-48Q", "GRID T4-16Q", "NVIDIA A100-4-20C", "NVIDIA L40S-8B"})
    EXPECT_TRUE(is_vgpu_model(model)) << model;
  for (const char* model : {"NVIDIA H200", "NVIDIA A100-SXM4-40GB", "NVIDIA H100 PCIe", "Tesla T4",
                            "", "Q", "-Q", "8Q"})
    EXPECT_FALSE(is_vgpu_model(model)) << model;
}

}  // namespace
}  // namespace gpuprof::doctor

// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/host_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpuprof::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

doctor::HostFacts with_gpu() {
  doctor::HostFacts out;
  out.kernel_module = "580.159.04";
  out.gpus.push_back({"NVIDIA H200", "GPU-1", "0000:18:00.0", false, 0});
  return out;
}

TEST(HostWarnings, NothingWhereAllIsWell) {
  EXPECT_THAT(host_warnings(with_gpu()), IsEmpty());
  doctor::HostFacts tegra;
  tegra.tegra = true;
  EXPECT_THAT(host_warnings(tegra), IsEmpty()) << "its driver has no version to be seen";
}

TEST(HostWarnings, NoDriver) {
  doctor::HostFacts facts;
  EXPECT_THAT(host_warnings(facts),
              ElementsAre(StartsWith("neither an NVIDIA GPU nor its driver")));
  facts.gpus_on_bus = 8;
  EXPECT_THAT(host_warnings(facts), ElementsAre(HasSubstr("modprobe nvidia")));
}

TEST(HostWarnings, ThePlatformBeforePermissions) {
  doctor::HostFacts facts = with_gpu();
  facts.admin_only = true;
  facts.wsl = facts.mps = true;
  facts.confidential = "TDX";
  facts.gpus[0].mig_instances = 2;
  facts.gpus.push_back({"NVIDIA A40-48Q", "", "0000:19:00.0", true, 0});
  facts.nested_pids = true;
  EXPECT_THAT(
      host_warnings(facts),
      ElementsAre(HasSubstr("WSL"), HasSubstr("(TDX)"), HasSubstr("virtual"),
                  StartsWith("MIG is on"), HasSubstr("nvidia-cuda-mps-control"),
                  HasSubstr("NVreg_RestrictProfilingToAdminUsers=0"), HasSubstr("hostPID: true")));
  facts = with_gpu();
  facts.admin_only = false;
  EXPECT_THAT(host_warnings(facts), IsEmpty());
}

TEST(HostTable, RefusalsFirstAndEachFact) {
  HostCheck host;
  host.facts = with_gpu();
  host.facts.gpus[0].mig_instances = 2;
  host.attach = "uprobe_multi";
  host.capabilities = {{"CAP_BPF", true}, {"CAP_SYSLOG", false}};
  EXPECT_THAT(host_table(host), StartsWith("this host can be profiled\n"));
  EXPECT_THAT(host_table(host),
              HasSubstr("NVIDIA H200, 0000:18:00.0, GPU-1, MIG with 2 instances"));
  host.refusals = {"missing CAP_BPF: sudo"};
  host.attach.clear();
  const std::string text = host_table(host);
  EXPECT_THAT(text, StartsWith("this host cannot be profiled as gpu-profiled runs now\n  refused: "
                               "missing CAP_BPF: sudo\n"));
  EXPECT_THAT(text, HasSubstr("not to be seen (refused, see above)"));
  EXPECT_THAT(text, HasSubstr("without               CAP_SYSLOG\n"));
}

}  // namespace
}  // namespace gpuprof::cli

// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/environment.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "daemon/cli/shim_path.h"

namespace gpuprof::cli {
namespace {

TEST(Environment, SetReplacesAndUnsetRemoves) {
  Environment environment({"A=1", "AB=2", "A=3"});
  environment.set("A", "x=y");
  EXPECT_EQ(environment.entries(), (std::vector<std::string>{"AB=2", "A=x=y"}));
  EXPECT_EQ(environment.value("A"), "x=y");
  environment.unset("AB");
  EXPECT_EQ(environment.find("AB"), nullptr);
  EXPECT_EQ(environment.value("AB"), "");
}

TEST(Environment, ForeignInjectionIsNeverReplacedSilently) {
  const Environment foreign({"CUDA_INJECTION64_PATH=/opt/nsys/libToolsInjection64.so"});
  auto refused = check_injection(foreign, "/our/shim.so", false);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("/opt/nsys/libToolsInjection64.so"), std::string::npos);
  EXPECT_NE(refused.error().message.find("--force"), std::string::npos);
  EXPECT_TRUE(check_injection(foreign, "/our/shim.so", true).has_value());
  EXPECT_TRUE(
      check_injection(Environment({"CUDA_INJECTION64_PATH=/our/shim.so"}), "/our/shim.so", false)
          .has_value());
  EXPECT_TRUE(
      check_injection(Environment({"CUDA_INJECTION64_PATH="}), "/our/shim.so", false).has_value());
  EXPECT_TRUE(check_injection(Environment({}), "/our/shim.so", false).has_value());
}

TEST(Environment, Profiling) {
  Environment environment({"GPU_PROFILED_SHIM=/x", "GPU_PROFILED_LOG=stderr"});
  Options options;
  options.stack_rate = UINT32_MAX;
  options.seed = 5;
  set_profiling(environment, options, "/our/shim.so");
  EXPECT_EQ(environment.value("CUDA_INJECTION64_PATH"), "/our/shim.so");
  EXPECT_EQ(environment.value("GPU_PROFILED_ARM"), "trace");
  EXPECT_EQ(environment.value("GPU_PROFILED_STACK_RATE"), "all");
  EXPECT_EQ(environment.value("GPU_PROFILED_SEED"), "5");
  EXPECT_EQ(environment.find("PYTHONPERFSUPPORT"), nullptr);
  EXPECT_EQ(environment.value("GPU_PROFILED_LOG"), "stderr");
  EXPECT_EQ(environment.find("GPU_PROFILED_SHIM"), nullptr);

  options.tier = GPUPROF_TIER_CONTINUOUS;
  set_profiling(environment, options, "/our/shim.so");
  EXPECT_EQ(environment.value("GPU_PROFILED_ARM"), "continuous");
  options.pc_period = 20;
  set_profiling(environment, options, "/our/shim.so");
  EXPECT_EQ(environment.value("GPU_PROFILED_ARM"), "trace");

  Environment plain({});
  options = Options();
  set_profiling(plain, options, "/our/shim.so");
  EXPECT_EQ(plain.find("GPU_PROFILED_STACK_RATE"), nullptr);
}

TEST(Environment, IdentityOfTheInvoker) {
  Environment environment({"HOME=/root", "USER=root", "LOGNAME=root", "SUDO_UID=1000",
                           "SUDO_USER=bob", "SUDO_HOME=/home/bob", "PATH=/bin"});
  Invoker invoker;
  set_identity(environment, invoker);
  EXPECT_EQ(environment.value("HOME"), "/root") << "we are who we are: nothing changes";
  invoker.switches = true;
  invoker.name = "bob";
  invoker.home = "/home/bob";
  set_identity(environment, invoker);
  EXPECT_EQ(environment.value("HOME"), "/home/bob");
  EXPECT_EQ(environment.value("USER"), "bob");
  EXPECT_EQ(environment.value("LOGNAME"), "bob");
  EXPECT_EQ(environment.find("SUDO_UID"), nullptr);
  EXPECT_EQ(environment.find("SUDO_HOME"), nullptr);
  EXPECT_EQ(environment.value("PATH"), "/bin");
}

TEST(ShimPath, OptionThenVariable) {
  ::setenv("GPU_PROFILED_SHIM", "/from/environment.so", 1);
  EXPECT_EQ(find_shim("/from/option.so"), "/from/option.so");
  EXPECT_EQ(find_shim(""), "/from/environment.so");
  ::unsetenv("GPU_PROFILED_SHIM");
  EXPECT_TRUE(find_shim("").ends_with("/libgpu-profiled-cupti.so"));
  EXPECT_TRUE(find_shim("relative.so").starts_with("/")) << "the driver opens it from elsewhere";
}

TEST(Invoker, SudosCaller) {
  ::setenv("SUDO_UID", "65534", 1);
  ::setenv("SUDO_GID", "65534", 1);
  auto invoker = Invoker::resolve("");
  ASSERT_TRUE(invoker.has_value()) << invoker.error().message;
  if (::geteuid() == 0) {
    EXPECT_EQ(invoker->uid, 65534u);
    EXPECT_EQ(invoker->gid, 65534u);
    EXPECT_EQ(invoker->name, "nobody");
    EXPECT_TRUE(invoker->switches);
    auto root = Invoker::resolve("root");
    ASSERT_TRUE(root.has_value());
    EXPECT_EQ(root->uid, 0u) << "--user overrides sudo";
    EXPECT_FALSE(root->switches);
    EXPECT_NE(std::find(root->groups.begin(), root->groups.end(), 0u), root->groups.end());
  } else {
    EXPECT_EQ(invoker->uid, ::geteuid()) << "SUDO_UID means nothing where we are not root";
  }
  ::setenv("SUDO_UID", "12x", 1);
  EXPECT_EQ(Invoker::resolve("")->uid, ::geteuid());
  ::unsetenv("SUDO_UID");
  ::unsetenv("SUDO_GID");
  auto unknown = Invoker::resolve("no-such-user-here");
  ASSERT_FALSE(unknown.has_value());
  EXPECT_EQ(unknown.error().code, Code::kInvalidArgument);
}

}  // namespace
}  // namespace gpuprof::cli

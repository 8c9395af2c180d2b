// SPDX-License-Identifier: Apache-2.0
#include "daemon/probe/kernel_features.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>

namespace gpuprof::probe {
namespace {

struct Trouble {
  const char* name;
  void (*make)(BpfAccess&);
  Code code;
  const char* text;
};

const Trouble kTroubles[] = {
    {"NoBpf", [](BpfAccess& a) { a.cap_bpf = false; }, Code::kPermission, "needs CAP_BPF: "},
    {"NoPerfmon", [](BpfAccess& a) { a.cap_perfmon = false; }, Code::kPermission,
     "needs CAP_PERFMON: "},
    {"Neither", [](BpfAccess& a) { a.cap_bpf = a.cap_perfmon = false; }, Code::kPermission,
     "needs CAP_BPF and CAP_PERFMON: run with sudo"},
    {"Lockdown", [](BpfAccess& a) { a.locked_down = true; }, Code::kPermission,
     "boot with lockdown=integrity"},
    {"NoBtf", [](BpfAccess& a) { a.btf_errno = ENOENT; }, Code::kUnsupported,
     "CONFIG_DEBUG_INFO_BTF and /sys mounted): No such file"},
    {"Seccomp", [](BpfAccess& a) { a.program_errno = EPERM; }, Code::kPermission, "seccomp"},
    {"NoProbes", [](BpfAccess& a) { a.program_errno = EINVAL; }, Code::kUnsupported,
     "CONFIG_BPF_EVENTS"},
    {"OldKernel", [](BpfAccess& a) { a.attach_cookies = false; }, Code::kUnsupported,
     "need Linux 5.15 or newer"},
};

class BpfTrouble : public testing::TestWithParam<Trouble> {};

TEST_P(BpfTrouble, IsNamedInOneLine) {
  BpfAccess access;
  ASSERT_TRUE(explain(access)) << "nothing is wrong";
  GetParam().make(access);
  const Status said = explain(access);
  ASSERT_FALSE(said);
  EXPECT_EQ(said.error().code, GetParam().code);
  EXPECT_NE(said.error().message.find(GetParam().text), std::string::npos) << said.error().message;
  EXPECT_EQ(said.error().message.find('\n'), std::string::npos) << said.error().message;
}
INSTANTIATE_TEST_SUITE_P(Each, BpfTrouble, testing::ValuesIn(kTroubles),
                         [](const auto& test) { return std::string(test.param.name); });

// What is missing first is told first: without the capability nothing else can be found out.
TEST(BpfAccess, ACapabilityComesFirst) {
  BpfAccess access;
  access.cap_bpf = false;
  access.program_errno = EPERM;
  access.attach_cookies = false;
  EXPECT_NE(explain(access).error().message.find("CAP_BPF"), std::string::npos);
}

}  // namespace
}  // namespace gpuprof::probe

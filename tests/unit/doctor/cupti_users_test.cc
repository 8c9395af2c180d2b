// SPDX-License-Identifier: Apache-2.0
#include "daemon/doctor/cupti_users.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpuprof::doctor {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> limits(uint32_t cupti, uint32_t driver) {
  std::vector<std::string> out;
  for (const CuptiLimit& limit : cupti_limits(cupti, driver)) {
    out.emplace_back(limit.name);
    EXPECT_NE(limit.text.find("CUPTI " + cupti_version_text(cupti)), std::string::npos);
    EXPECT_NE(limit.text.find("GPU_PROFILED_CUPTI_PATH"), std::string::npos) << "what to do";
  }
  return out;
}

TEST(CuptiUsers, ByTheirLibraries) {
  std::vector<target::Mapping> mappings(4);
  mappings[0].path = "/v/torch/lib/libtorch_cpu.so";
  mappings[1].path = "/v/torch/lib/libtorch_cpu.so";
  mappings[2].path = "/opt/nsight/libToolsInjection64.so (deleted)";
  mappings[3].path = "/usr/lib/libc.so.6";
  EXPECT_THAT(cupti_users(mappings), ElementsAre("torch.profiler", "Nsight Systems"));
}

TEST(CuptiVersion, AsReleasesAreNamed) {
  EXPECT_EQ(cupti_version_text(18), "11.8");
  EXPECT_EQ(cupti_version_text(26), "12.8");
  EXPECT_EQ(cupti_version_text(28), "12.9");
  EXPECT_EQ(cupti_version_text(130001), "13.0");
  EXPECT_EQ(cupti_version_text(130200), "13.2");
  EXPECT_EQ(cupti_version_text(99), "API 99");
}

TEST(CuptiLimits, PairsThatAreKnown) {
  EXPECT_THAT(limits(0, 13000), IsEmpty());
  EXPECT_THAT(limits(130001, 13000), IsEmpty());
  EXPECT_THAT(limits(28, 13000), IsEmpty());
  EXPECT_THAT(limits(28, 0), IsEmpty());
  EXPECT_THAT(limits(130001, 12080), ElementsAre("newer-than-driver"));
  EXPECT_THAT(limits(130200, 13000), ElementsAre("may-crash"));
  EXPECT_THAT(limits(26, 13000), ElementsAre("no-pc-sampling"));
  EXPECT_THAT(limits(22, 12040), ElementsAre("no-disarm", "no-pc-sampling"));
  EXPECT_THAT(limits(18, 13000), ElementsAre("runtime-only", "no-pc-sampling"));
  EXPECT_THAT(limits(18, 11080), ElementsAre("no-pc-sampling"));
}

}  // namespace
}  // namespace gpuprof::doctor

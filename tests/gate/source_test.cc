// SPDX-License-Identifier: Apache-2.0
//
// Gate04, what no end-to-end run can show: every function's end in every fixture, and the enum
// itself.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>

#include "daemon/join/assemble.h"
#include "tests/unit/cubin/fixture.h"

namespace gpuprof::cubin {
namespace {

TEST(Gate04, StatusesAreFourAndZeroIsNone) {
  EXPECT_STREQ(source_status_name(SourceStatus{}), "");
  std::set<std::string> names;
  for (size_t i = 1; i < kSourceStatusCount; ++i)
    names.insert(source_status_name(static_cast<SourceStatus>(i)));
  EXPECT_EQ(names, (std::set<std::string>{"resolved", "no-lineinfo", "no-module", "unmapped"}));
  EXPECT_EQ(join::SourceCounts().by_status.size(), kSourceStatusCount);
}

TEST(Gate04, NoPcPastAFunctionsEndHasALine) {
  size_t functions = 0;
  for (const auto& entry : std::filesystem::directory_iterator(CUBIN_FIXTURES)) {
    if (entry.path().extension() != ".cubin") continue;
    const auto image = test::fixture_image(entry.path().stem().string());
    ASSERT_NE(image, nullptr) << entry.path();
    for (const Function& function : image->functions()) {
      if (!function.is_kernel) continue;
      ++functions;
      EXPECT_NE(image->resolve(function.mangled, function.size_bytes - 1).status,
                SourceStatus::kUnmapped)
          << entry.path() << " " << function.mangled;
      for (const uint64_t beyond : {uint64_t{0}, uint64_t{1}, uint64_t{16}, uint64_t{4096}}) {
        const Resolution past = image->resolve(function.mangled, function.size_bytes + beyond);
        EXPECT_EQ(past.status, SourceStatus::kUnmapped) << entry.path() << " " << function.mangled;
        EXPECT_TRUE(past.frames.empty());
      }
    }
  }
  EXPECT_GT(functions, 30u);
}

}  // namespace
}  // namespace gpuprof::cubin

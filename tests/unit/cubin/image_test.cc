// SPDX-License-Identifier: Apache-2.0
#include "daemon/cubin/image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/unit/cubin/fixture.h"

namespace gpuprof::cubin {
namespace {

using test::chain_text;
using test::fixture_image;

std::vector<std::string> names(const Image& image) {
  std::vector<std::string> found;
  for (const Function& function : image.functions()) {
    found.push_back((function.is_kernel ? "kernel " : "device ") + std::string(function.mangled));
  }
  return found;
}

TEST(LineTable, InlineChainWalksContextsUpward) {
  const auto image = fixture_image("inline_chain.sm_90");
  ASSERT_TRUE(image);
  EXPECT_EQ(chain_text(image->resolve("chain", 0x10)), "resolved: chain inline_chain.cu:27");
  EXPECT_EQ(chain_text(image->resolve("chain", 0x20)),
            "resolved: _Z5innerfi inline_chain.cu:6 < _Z6middlefi inline_chain.cu:13 < "
            "_Z5outerfi inline_chain.cu:18 < chain inline_chain.cu:28");
  EXPECT_EQ(chain_text(image->resolve("chain", 0x170)),
            "resolved: _Z5innerfi inline_chain.cu:7 < _Z6middlefi inline_chain.cu:13 < "
            "_Z5outerfi inline_chain.cu:18 < chain inline_chain.cu:28");
}

TEST(LineTable, FileHasItsDirectory) {
  const auto image = fixture_image("inline_chain.sm_90");
  ASSERT_TRUE(image);
  const Resolution resolution = image->resolve("chain", 0);
  ASSERT_EQ(resolution.frames.size(), 1u);
  EXPECT_EQ(resolution.frames[0].file, "/tmp/kernels/inline_chain.cu");
}

TEST(Image, DeviceFunctionInAKernelIsItselfUnderItsCall) {
  const auto image = fixture_image("inline_chain.sm_90");
  ASSERT_TRUE(image);
  const Function* const apart = image->find("$chain$_Z5apartfi");
  ASSERT_NE(apart, nullptr);
  EXPECT_EQ(apart->offset, 0x1f10u);
  EXPECT_FALSE(apart->is_kernel);
  EXPECT_EQ(chain_text(image->resolve("chain", apart->offset)),
            "resolved: _Z5innerfi inline_chain.cu:6 < _Z5apartfi inline_chain.cu:22 < "
            "chain inline_chain.cu:29");
  EXPECT_EQ(chain_text(image->resolve("$chain$_Z5apartfi", 0)),
            chain_text(image->resolve("chain", apart->offset)));
  EXPECT_EQ(image->resolve("$chain$_Z5apartfi", 0x10).address,
            image->resolve("chain", apart->offset + 0x10).address);
}

// ptxas' own division has no rows; the last row before it is another function's.
TEST(LineTable, RowsEndWithTheirFunction) {
  const auto image = fixture_image("inline_chain.sm_90");
  ASSERT_TRUE(image);
  const Function* const slow = image->find("$__internal_0_$__cuda_sm3x_div_rn_noftz_f32_slowpath");
  ASSERT_NE(slow, nullptr);
  for (uint64_t pc = slow->offset; pc < slow->offset + slow->size_bytes; pc += 16) {
    ASSERT_EQ(chain_text(image->resolve("chain", pc)),
              "resolved: __cuda_sm3x_div_rn_noftz_f32_slowpath < _Z5apartfi inline_chain.cu:23 < "
              "chain inline_chain.cu:29")
        << pc;
  }
}

TEST(Image, KernelsAndDeviceFunctionsInAddressOrder) {
  const auto image = fixture_image("inline_chain.sm_90");
  ASSERT_TRUE(image);
  EXPECT_THAT(names(*image),
              testing::ElementsAre("kernel chain", "device $chain$_Z5apartfi",
                                   "device $__internal_0_$__cuda_sm3x_div_rn_noftz_f32_slowpath"));
  EXPECT_EQ(image->sm(), 90u);
  EXPECT_EQ(image->abi_version(), 8u);
  EXPECT_TRUE(image->has_line_info());
}

TEST(Image, BeyondTheEndAndUnknownFunctionsAreUnmapped) {
  const auto image = fixture_image("inline_chain.sm_90");
  ASSERT_TRUE(image);
  const Function* const kernel = image->find("chain");
  ASSERT_NE(kernel, nullptr);
  EXPECT_NE(image->resolve("chain", kernel->size_bytes - 1).status, SourceStatus::kUnmapped);
  for (const auto& beyond : {image->resolve("chain", kernel->size_bytes),
                             image->resolve("chain", UINT64_MAX), image->resolve("other", 0)}) {
    EXPECT_EQ(beyond.status, SourceStatus::kUnmapped);
    EXPECT_EQ(beyond.address, 0u);
    EXPECT_TRUE(beyond.frames.empty());
  }
}

TEST(Image, OldAndNewFlagsGiveTheArchitecture) {
  const struct {
    const char* name;
    uint32_t sm;
    uint32_t abi;
  } cases[] = {
      {"inline_chain.sm_75", 75, 8},        {"inline_chain.sm_80", 80, 8},
      {"inline_chain.sm_100", 100, 8},      {"inline_chain.sm_120", 120, 8},
      {"inline_chain.sm_90.cuda12", 90, 7}, {"apart.sm_80.cuda11", 80, 7},
  };
  for (const auto& each : cases) {
    const auto image = fixture_image(each.name);
    ASSERT_TRUE(image) << each.name;
    EXPECT_EQ(image->sm(), each.sm) << each.name;
    EXPECT_EQ(image->abi_version(), each.abi) << each.name;
  }
}

TEST(Image, WithoutLineInfoTheFunctionIsKnown) {
  const auto image = fixture_image("inline_chain.sm_90.plain");
  ASSERT_TRUE(image);
  EXPECT_FALSE(image->has_line_info());
  EXPECT_EQ(chain_text(image->resolve("chain", 0x20)), "no-lineinfo: chain");
  const Function* const apart = image->find("$chain$_Z5apartfi");
  ASSERT_NE(apart, nullptr);
  EXPECT_EQ(chain_text(image->resolve("chain", apart->offset)), "no-lineinfo: _Z5apartfi < chain");
}

// -G puts each device function into a section of its own, and CUPTI counts from its start.
TEST(Image, DebugBuildHasLinesWithoutChains) {
  const auto image = fixture_image("inline_chain.sm_90.debug");
  ASSERT_TRUE(image);
  const Function* const apart = image->find("_Z5apartfi");
  const Function* const kernel = image->find("chain");
  ASSERT_NE(apart, nullptr);
  ASSERT_NE(kernel, nullptr);
  EXPECT_NE(apart->section, kernel->section);
  const Resolution resolution = image->resolve("_Z5apartfi", 0);
  EXPECT_EQ(chain_text(resolution), "resolved: _Z5apartfi inline_chain.cu:21");
}

TEST(Image, EveryFunctionHasAnAddressOfItsOwn) {
  for (const char* const name :
       {"equal_offsets.sm_80", "linked.sm_80", "inline_chain.sm_90.debug"}) {
    const auto image = fixture_image(name);
    ASSERT_TRUE(image) << name;
    uint64_t end = 0;  // of what was seen
    uint32_t section = 0;
    for (const Function& function : image->functions()) {
      EXPECT_GT(function.address, 0u) << name;
      EXPECT_EQ((function.address - function.offset) % 256, 0u) << name;
      // Only inside one section may one function lie in another.
      if (function.section != section) {
        EXPECT_GE(function.address, end) << name << ' ' << function.mangled;
      }
      section = function.section;
      end = std::max(end, function.address + function.size_bytes);
    }
    EXPECT_LE(end, image->limit()) << name;
  }
}

TEST(LineTable, EqualOffsetsOfTwoKernelsAreTwoLines) {
  const auto image = fixture_image("equal_offsets.sm_80");
  ASSERT_TRUE(image);
  const Function* const up = image->find("_Z8scale_upPff");
  const Function* const twin = image->find("_Z10scale_twinPff");
  ASSERT_TRUE(up != nullptr && twin != nullptr);
  ASSERT_EQ(up->size_bytes, twin->size_bytes);
  for (uint64_t pc = 0; pc < up->size_bytes; pc += 16) {
    const Resolution first = image->resolve(up->mangled, pc);
    const Resolution second = image->resolve(twin->mangled, pc);
    EXPECT_NE(first.address, second.address);
    ASSERT_EQ(first.frames.size(), 1u);
    ASSERT_EQ(second.frames.size(), 1u);
    EXPECT_EQ(first.frames[0].mangled, up->mangled);
    EXPECT_EQ(second.frames[0].mangled, twin->mangled);
    EXPECT_LT(first.frames[0].line, second.frames[0].line);
  }
}

}  // namespace
}  // namespace gpuprof::cubin

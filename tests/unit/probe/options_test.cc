// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "daemon/probe/probe_session.h"

namespace gpuprof::probe {
namespace {

TEST(ProbeOptions, FallbacksByName) {
  ProbeOptions options;
  ASSERT_TRUE(options.add_fallbacks(""));
  ASSERT_TRUE(options.add_fallbacks("no-sleepable,no_nop5,"));
  EXPECT_FALSE(options.no_uprobe_multi);
  EXPECT_TRUE(options.no_sleepable);
  EXPECT_TRUE(options.no_nop5);
  EXPECT_FALSE(options.no_find_vma);
  ASSERT_TRUE(options.add_fallbacks("no-find-vma,no-uprobe-multi"));
  EXPECT_TRUE(options.no_uprobe_multi);
  EXPECT_TRUE(options.no_find_vma);
}

TEST(ProbeOptions, PretendedTroubleByName) {
  ProbeOptions options;
  EXPECT_EQ(options.pretend, ProbeOptions::Pretend::kNothing);
  ASSERT_TRUE(options.add_fallbacks("no-nop5,pretend_no_btf"));
  EXPECT_EQ(options.pretend, ProbeOptions::Pretend::kNoBtf);
  EXPECT_FALSE(options.add_fallbacks("pretend-anything"));
}

TEST(ProbeOptions, UnknownFallbackIsAnError) {
  ProbeOptions options;
  const Status added = options.add_fallbacks("no-nop5,no-uprobes");
  ASSERT_FALSE(added);
  EXPECT_EQ(added.error().code, Code::kInvalidArgument);
  EXPECT_NE(added.error().message.find("'no-uprobes'"), std::string::npos);
}

}  // namespace
}  // namespace gpuprof::probe

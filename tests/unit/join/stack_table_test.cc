// SPDX-License-Identifier: Apache-2.0
#include "daemon/join/stack_table.h"

#include <gtest/gtest.h>

namespace gpuprof::join {
namespace {

std::vector<uint64_t> stack(uint64_t first, size_t depth) {
  std::vector<uint64_t> pcs(depth);
  for (size_t i = 0; i < depth; ++i) pcs[i] = first + i;
  return pcs;
}

std::vector<uint64_t> copy(std::span<const uint64_t> pcs) { return {pcs.begin(), pcs.end()}; }

TEST(StackTable, EqualStacksShareAnId) {
  StackTable table;
  const StackId a = table.intern(stack(1000, 30));
  const StackId b = table.intern(stack(1000, 29));
  EXPECT_NE(a, kNoStack);
  EXPECT_NE(a, b);
  EXPECT_EQ(table.intern(stack(1000, 30)), a);
  EXPECT_EQ(copy(table.pcs(a)), stack(1000, 30));
  EXPECT_EQ(copy(table.pcs(b)), stack(1000, 29));
  EXPECT_EQ(table.size(), 2u);
}

TEST(StackTable, EmptyAndUnknownAreNoStack) {
  StackTable table;
  EXPECT_EQ(table.intern({}), kNoStack);
  EXPECT_TRUE(table.pcs(kNoStack).empty());
  EXPECT_TRUE(table.pcs(12345).empty());
  EXPECT_EQ(table.overflows(), 0u);
}

TEST(StackTable, ManyStacksKeepTheirIds) {
  StackTable table;
  std::vector<StackId> ids;
  for (uint64_t i = 0; i < 20'000; ++i) ids.push_back(table.intern(stack(i * 7, 1 + i % 40)));
  for (uint64_t i = 0; i < 20'000; ++i) {
    ASSERT_EQ(copy(table.pcs(ids[i])), stack(i * 7, 1 + i % 40));
    ASSERT_EQ(table.intern(stack(i * 7, 1 + i % 40)), ids[i]);
  }
}

TEST(StackTable, LimitsRefuseAndCount) {
  StackTableLimits limits;
  limits.max_stacks = 4;
  limits.max_pcs = 100;
  limits.max_depth = 50;
  StackTable table(limits);
  EXPECT_EQ(table.intern(stack(0, 51)), kNoStack);
  EXPECT_NE(table.intern(stack(0, 50)), kNoStack);
  EXPECT_EQ(table.intern(stack(7000, 50)) == kNoStack, false);
  EXPECT_EQ(table.intern(stack(9000, 1)), kNoStack);  // 101st pc
  EXPECT_EQ(table.overflows(), 2u);
  limits.max_pcs = 1000;
  StackTable by_count(limits);
  for (uint64_t i = 0; i < 4; ++i) EXPECT_NE(by_count.intern(stack(i * 10, 3)), kNoStack);
  EXPECT_EQ(by_count.intern(stack(999, 3)), kNoStack);
  EXPECT_NE(by_count.intern(stack(10, 3)), kNoStack);  // a known one still is
}

TEST(StackTable, RetainFreesTheRestAndReusesIds) {
  StackTableLimits limits;
  limits.max_stacks = 100;
  StackTable table(limits);
  std::vector<StackId> ids;
  for (uint64_t i = 0; i < 100; ++i) ids.push_back(table.intern(stack(i * 100, 20)));
  table.retain([&](StackId id) { return id == ids[42]; });
  EXPECT_EQ(table.size(), 1u);
  EXPECT_EQ(copy(table.pcs(ids[42])), stack(4200, 20));
  EXPECT_EQ(table.intern(stack(4200, 20)), ids[42]);
  EXPECT_TRUE(table.pcs(ids[41]).empty());
  for (uint64_t i = 0; i < 99; ++i) ASSERT_NE(table.intern(stack(50'000 + i * 100, 20)), kNoStack);
  EXPECT_EQ(copy(table.pcs(ids[42])), stack(4200, 20));
}

}  // namespace
}  // namespace gpuprof::join

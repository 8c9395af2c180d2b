// SPDX-License-Identifier: Apache-2.0
#include "daemon/unwind/frame_rule.h"

#include <dwarf.h>
#include <gtest/gtest.h>

#include <random>

namespace gpuprof::unwind {
namespace {

class ExpressionTest : public testing::Test {
 protected:
  ExpressionTest() {
    for (size_t i = 0; i < sizeof bytes_; ++i) bytes_[i] = static_cast<uint8_t>(i);
    regs_.set(6, 0x1020);
    regs_.set(7, 0x1008);
    regs_.set(16, 0x400010);
  }
  std::optional<uint64_t> run(std::vector<ExprOp> ops, std::optional<uint64_t> cfa = std::nullopt) {
    return evaluate(ops, regs_, StackView{0x1000, bytes_}, cfa);
  }
  uint8_t bytes_[64];
  Registers regs_;
};

// The CFA of every .plt entry: rsp + 8, and 8 more once the index was pushed (from byte 11 on).
TEST_F(ExpressionTest, PltCfa) {
  const std::vector<ExprOp> plt = {
      {DW_OP_breg0 + 7, 8, 0}, {DW_OP_breg0 + 16, 0, 0}, {DW_OP_lit15, 0, 0},
      {DW_OP_and, 0, 0},       {DW_OP_lit0 + 11, 0, 0},  {DW_OP_ge, 0, 0},
      {DW_OP_lit3, 0, 0},      {DW_OP_shl, 0, 0},        {DW_OP_plus, 0, 0}};
  EXPECT_EQ(run(plt), 0x1010u);
  regs_.set(16, 0x40001b);
  EXPECT_EQ(run(plt), 0x1018u);
}

TEST_F(ExpressionTest, RealignedStackDereferencesTheFramePointer) {
  EXPECT_EQ(run({{DW_OP_breg0 + 6, -8, 0}, {DW_OP_deref, 0, 0}}), 0x1f1e1d1c1b1a1918u);
  EXPECT_EQ(run({{DW_OP_breg0 + 6, -8, 0}, {DW_OP_deref_size, 2, 0}}), 0x1918u);
}

TEST_F(ExpressionTest, CfaIsOnlyThereForRegisters) {
  EXPECT_EQ(run({{DW_OP_call_frame_cfa, 0, 0}, {DW_OP_plus_uconst, 8, 0}}, 0x2000), 0x2008u);
  EXPECT_EQ(run({{DW_OP_call_frame_cfa, 0, 0}}), std::nullopt);
}

TEST_F(ExpressionTest, StackShuffling) {
  const std::vector<ExprOp> base = {{DW_OP_lit1, 0, 0}, {DW_OP_lit2, 0, 0}, {DW_OP_lit3, 0, 0}};
  auto with = [&](uint8_t atom, int64_t a = 0) {
    auto ops = base;
    ops.push_back({atom, a, 0});
    return run(ops);
  };
  EXPECT_EQ(with(DW_OP_swap), 2u);
  EXPECT_EQ(with(DW_OP_rot), 2u);  // the top goes below the next two
  EXPECT_EQ(with(DW_OP_over), 2u);
  EXPECT_EQ(with(DW_OP_pick, 2), 1u);
  EXPECT_EQ(with(DW_OP_drop), 2u);
  EXPECT_EQ(with(DW_OP_neg), static_cast<uint64_t>(-3));
  EXPECT_EQ(with(DW_OP_pick, 3), std::nullopt);
}

TEST_F(ExpressionTest, Branches) {
  // bra over one operation: 1 -> 5, and not taken -> 7.
  EXPECT_EQ(run({{DW_OP_lit5, 0, 0}, {DW_OP_lit1, 0, 0}, {DW_OP_bra, 4, 0}, {DW_OP_lit7, 0, 0}}),
            5u);
  EXPECT_EQ(run({{DW_OP_lit5, 0, 0}, {DW_OP_lit0, 0, 0}, {DW_OP_bra, 4, 0}, {DW_OP_lit7, 0, 0}}),
            7u);
}

TEST_F(ExpressionTest, WhatCannotBeKnownIsNothing) {
  EXPECT_EQ(run({}), std::nullopt);
  EXPECT_EQ(run({{DW_OP_plus, 0, 0}}), std::nullopt);
  EXPECT_EQ(run({{DW_OP_breg0 + 3, 0, 0}}), std::nullopt);  // rbx was lost
  EXPECT_EQ(run({{DW_OP_bregx, 1 << 20, 0}}), std::nullopt);
  EXPECT_EQ(run({{DW_OP_lit0, 0, 0}, {DW_OP_deref, 0, 0}}), std::nullopt);
  EXPECT_EQ(run({{DW_OP_breg0 + 6, 0x19, 0}, {DW_OP_deref, 0, 0}}), std::nullopt);  // 7 bytes left
  EXPECT_EQ(run({{DW_OP_skip, 0, 0}}), std::nullopt);                               // endless
  EXPECT_EQ(run({{DW_OP_skip, -1, 0}}), std::nullopt);
  EXPECT_EQ(run(std::vector<ExprOp>(100, {DW_OP_lit1, 0, 0})), std::nullopt);  // too deep
  EXPECT_EQ(run({{DW_OP_xderef, 0, 0}}), std::nullopt);
  EXPECT_EQ(run({{DW_OP_lit1, 0, 0},
                 {DW_OP_lit0 + 31, 0, 0},
                 {DW_OP_dup, 0, 0},
                 {DW_OP_plus, 0, 0},
                 {DW_OP_plus_uconst, 2, 0},
                 {DW_OP_shl, 0, 0}}),
            0u);  // a shift by 64 is defined
}

TEST_F(ExpressionTest, RandomOperationsEnd) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 100'000; ++round) {
    std::vector<ExprOp> ops(random() % 20);
    for (ExprOp& op : ops) {
      op = {static_cast<uint8_t>(random()), static_cast<int64_t>(random() % 64) - 8,
            static_cast<int64_t>(random())};
    }
    (void)run(ops, random());
  }
}

TEST(StackView, ReadsNothingOutside) {
  const uint8_t bytes[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const StackView view{0x1000, bytes};
  EXPECT_EQ(view.read(0x1000), 0x0807060504030201u);
  EXPECT_TRUE(view.read(0x1008).has_value());
  EXPECT_FALSE(view.read(0x1009).has_value());
  EXPECT_FALSE(view.read(0xfff).has_value());
  EXPECT_FALSE(view.read(~uint64_t{0}).has_value());
  const StackView high{~uint64_t{0} - 15, bytes};
  EXPECT_FALSE(high.read(0).has_value());
  EXPECT_TRUE(high.read(~uint64_t{0} - 7).has_value());
}

}  // namespace
}  // namespace gpuprof::unwind

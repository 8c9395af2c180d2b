// SPDX-License-Identifier: Apache-2.0
#include "daemon/python/stitch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace gpuprof::python {
namespace {

using testing::ElementsAre;

// "n3" is the native frame 3, "p3" the Python frame 3.
std::vector<std::string> names(const std::vector<StitchedFrame>& frames) {
  std::vector<std::string> out;
  for (const StitchedFrame& frame : frames)
    out.push_back((frame.is_python ? "p" : "n") + std::to_string(frame.index));
  return out;
}

constexpr Native kOther = Native::kOther, kEval = Native::kEvaluation,
                 kInner = Native::kInterpreter, kTrampoline = Native::kTrampoline;

TEST(Stitch, EveryEvaluationGivesWayToItsRun) {
  // Leaf, cfunction_call, eval, C library, call, eval, Py_RunMain, start.
  const std::vector<Native> native = {kOther, kInner, kEval, kOther, kInner, kEval, kInner, kOther};
  std::vector<StitchedFrame> out;
  ASSERT_EQ(stitch(native, true, std::vector<FrameRun>{{0, 2, 0}, {3, 4, 0}}, out),
            StitchEnd::kStitched);
  EXPECT_THAT(names(out), ElementsAre("n0", "p0", "p1", "n3", "p3", "n6", "n7"));
}

TEST(Stitch, ATrampolineIsNoFrame) {
  const std::vector<Native> native = {kOther, kEval,       kTrampoline, kInner,
                                      kEval,  kTrampoline, kInner};
  std::vector<StitchedFrame> out;
  ASSERT_EQ(stitch(native, true, std::vector<FrameRun>{{0, 1, 0}, {1, 2, 0}}, out),
            StitchEnd::kStitched);
  EXPECT_THAT(names(out), ElementsAre("n0", "p0", "p1", "n6"));
}

TEST(Stitch, WhatDoesNotAgreeStands) {
  std::vector<StitchedFrame> out;
  const std::vector<Native> native = {kOther, kEval, kInner};
  EXPECT_EQ(stitch(native, true, std::vector<FrameRun>{{0, 1, 0}, {1, 2, 0}}, out),
            StitchEnd::kDisagree);
  EXPECT_EQ(stitch(native, true, {}, out), StitchEnd::kDisagree);
  EXPECT_EQ(stitch(native, false, {}, out), StitchEnd::kDisagree)
      << "an evaluation without a run, however the stack ended";
}

TEST(Stitch, OuterRunsFollowACutStack) {
  std::vector<StitchedFrame> out;
  const std::vector<Native> native = {kOther, kEval, kOther};
  ASSERT_EQ(stitch(native, false, std::vector<FrameRun>{{0, 1, 0}, {1, 3, 0}}, out),
            StitchEnd::kStitched);
  EXPECT_THAT(names(out), ElementsAre("n0", "p0", "n2", "p1", "p2"));
}

gpuprof_python_frame frame(uint64_t address, uint32_t at, uint8_t value) {
  gpuprof_python_frame out = {};
  out.address = address;
  out.frame_window[at] = value;
  return out;
}

TEST(Runs, EveryFrameIsOneUpTo310) {
  Layout layout;
  layout.entry = EntryRule::kEveryFrame;
  const std::vector<gpuprof_python_frame> frames(3);
  const auto runs = runs_of(layout, frames);
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[2].begin, 2u);
  EXPECT_EQ(runs[2].end, 3u);
}

TEST(Runs, In311TheLastIsMarked) {
  Layout layout;
  layout.entry = EntryRule::kFlag;
  layout.window_entry = 68;
  const auto runs = runs_of(layout, std::vector{frame(1, 68, 0), frame(2, 68, 1), frame(3, 68, 1)});
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].end, 2u);
  EXPECT_EQ(runs[1].begin, 2u);
}

TEST(Runs, From312AFrameWithoutCodeFollows) {
  Layout layout;
  layout.entry = EntryRule::kOwner;
  layout.window_entry = 70;
  const auto runs = runs_of(
      layout, std::vector{frame(1, 70, 0), frame(2, 70, 1), frame(3, 70, 3), frame(4, 70, 4)});
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].begin, 0u);
  EXPECT_EQ(runs[0].end, 2u);
  EXPECT_EQ(runs[0].entry, 3u);
  EXPECT_EQ(runs[1].begin, runs[1].end) << "entered, and no function yet";
}

// Of two interpreters, the outer one's frames first.
TEST(Runs, From312TheyAreInTheOrderOfTheirCalls) {
  Layout layout;
  layout.entry = EntryRule::kOwner;
  layout.window_entry = 70;
  const auto runs = runs_of(layout, std::vector{frame(0x50, 70, 0), frame(0x7008, 70, 3),
                                                frame(0x60, 70, 0), frame(0x7001, 70, 3)});
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].begin, 2u);
  EXPECT_EQ(runs[1].begin, 0u);
}

}  // namespace
}  // namespace gpuprof::python

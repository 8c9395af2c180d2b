// SPDX-License-Identifier: Apache-2.0
#include "daemon/join/sampling_windows.h"

#include <gtest/gtest.h>

#include "tests/unit/join/pc_records.h"

namespace gpuprof::join {
namespace {

using testing::window;

constexpr uint32_t kOpen = GPUPROF_WINDOW_OPEN, kClose = GPUPROF_WINDOW_CLOSE;
constexpr uint32_t kContinuous = 1, kSerialized = 2;

Serialized at(const SamplingWindows& windows, uint64_t ns, uint32_t context = 1) {
  return windows.at(0, context, ns);
}

TEST(SamplingWindows, SerializedFromOpenToClose) {
  SamplingWindows windows;
  windows.add(window(kOpen, 1, 100, kSerialized));
  EXPECT_EQ(at(windows, 99), Serialized::kFalse);
  EXPECT_EQ(at(windows, 100), Serialized::kTrue);
  EXPECT_EQ(at(windows, 5000), Serialized::kTrue);
  windows.add(window(kClose, 1, 200, kSerialized));
  EXPECT_EQ(at(windows, 199), Serialized::kTrue);
  EXPECT_EQ(at(windows, 200), Serialized::kFalse);
  EXPECT_EQ(at(windows, 150, 2), Serialized::kUnknown);  // of another context nothing came
  windows.add(window(kOpen, 2, 300, kSerialized));
  windows.add(window(kClose, 2, 400, kSerialized));
  EXPECT_EQ(at(windows, 150), Serialized::kTrue);
  EXPECT_EQ(at(windows, 250), Serialized::kFalse);
  EXPECT_EQ(windows.counts().check(), "");
  EXPECT_EQ(windows.counts().opened[kSerialized], 2u);
  EXPECT_EQ(windows.counts().open, 0u);
  EXPECT_EQ(windows.period(), 10u);
}

TEST(SamplingWindows, ContinuousIsNotSerialized) {
  SamplingWindows windows;
  windows.add(window(kOpen, 1, 100, kContinuous));
  EXPECT_EQ(at(windows, 150), Serialized::kFalse);
  windows.add(window(kClose, 1, 200, kContinuous));
  EXPECT_EQ(at(windows, 150), Serialized::kFalse);
}

TEST(SamplingWindows, ALossIsUnknownUntilTheContextIsHeardOfAgain) {
  SamplingWindows windows;
  windows.add(window(kOpen, 1, 100, kSerialized));
  windows.add(window(kClose, 1, 200, kSerialized));
  windows.add_loss();
  EXPECT_EQ(at(windows, 150), Serialized::kTrue);  // before the loss
  EXPECT_EQ(at(windows, 250), Serialized::kUnknown);
  EXPECT_EQ(at(windows, 250, 2), Serialized::kUnknown);  // never heard of
  windows.add(window(kOpen, 3, 300, kContinuous));
  EXPECT_EQ(at(windows, 250), Serialized::kUnknown);
  EXPECT_EQ(at(windows, 350), Serialized::kFalse);
  EXPECT_EQ(at(windows, 350, 2), Serialized::kUnknown);
  EXPECT_TRUE(windows.lost_any());
  EXPECT_EQ(windows.counts().check(), "");
}

TEST(SamplingWindows, ALossInAnOpenWindowThatClosesWasNone) {
  SamplingWindows windows;
  windows.add(window(kOpen, 1, 100, kSerialized));
  windows.add_loss();  // another context's
  EXPECT_EQ(at(windows, 150), Serialized::kUnknown);
  windows.add(window(kClose, 1, 200, kSerialized));
  EXPECT_EQ(at(windows, 150), Serialized::kTrue);
  EXPECT_EQ(at(windows, 250), Serialized::kFalse);
}

TEST(SamplingWindows, ALostOpenIsUnknownBackToTheLastRecord) {
  SamplingWindows windows;
  windows.add(window(kOpen, 1, 100, kContinuous));
  windows.add(window(kClose, 1, 200, kContinuous));
  windows.add(window(kClose, 2, 400, kSerialized));
  EXPECT_EQ(at(windows, 150), Serialized::kFalse);
  EXPECT_EQ(at(windows, 300), Serialized::kUnknown);
  EXPECT_EQ(at(windows, 400), Serialized::kFalse);
  EXPECT_EQ(windows.counts().opens_lost, 1u);
  EXPECT_EQ(windows.counts().check(), "");
}

TEST(SamplingWindows, ALostCloseIsUnknownFromTheLastRecord) {
  SamplingWindows windows;
  windows.add(window(kOpen, 1, 100, kSerialized));
  windows.add(window(kOpen, 1, 150, kSerialized));  // told again: open still
  windows.add(window(kOpen, 2, 300, kContinuous));
  EXPECT_EQ(at(windows, 120), Serialized::kTrue);
  EXPECT_EQ(at(windows, 200), Serialized::kUnknown);
  EXPECT_EQ(at(windows, 350), Serialized::kFalse);
  EXPECT_EQ(windows.counts().closes_lost, 1u);
  EXPECT_EQ(windows.counts().duplicates, 1u);
  EXPECT_EQ(windows.counts().open, 1u);
  EXPECT_EQ(windows.counts().check(), "");
}

TEST(SamplingWindows, BoundsForgetIntoUnknown) {
  SamplingWindows windows;
  for (uint64_t i = 0; i < SamplingWindows::kMaxSpans + 10; ++i) {
    windows.add(window(kOpen, i, 1000 + i * 100, kSerialized));
    windows.add(window(kClose, i, 1050 + i * 100, kSerialized));
  }
  EXPECT_EQ(at(windows, 1010), Serialized::kUnknown);
  EXPECT_EQ(at(windows, 1000 + (SamplingWindows::kMaxSpans + 9) * 100), Serialized::kTrue);
  for (uint32_t context = 2; context < SamplingWindows::kMaxContexts + 20; ++context)
    windows.add(window(kOpen, 1, 10, kContinuous, context));
  EXPECT_GT(windows.counts().refused, 0u);
  EXPECT_EQ(at(windows, 50, SamplingWindows::kMaxContexts + 19), Serialized::kUnknown);
  EXPECT_EQ(at(windows, 50, 2), Serialized::kFalse);
  EXPECT_EQ(windows.counts().check(), "");
}

// A serialized window of each of `contexts` contexts, at [100, 200) of each of `rounds` thousands.
void flood(SamplingWindows& windows, uint32_t contexts, uint64_t rounds) {
  uint64_t id = 0;
  for (uint64_t round = 0; round < rounds; ++round) {
    for (uint32_t context = 1; context <= contexts; ++context) {
      gpuprof_window_v1 record = window(kOpen, ++id, round * 1000 + 100, kSerialized);
      record.context_id = context;
      windows.add(record);
      record = window(kClose, id, round * 1000 + 200, kSerialized);
      record.context_id = context;
      windows.add(record);
    }
  }
}

TEST(SamplingWindows, ProcessesShareABoundAndHaveAReserve) {
  SamplingRoom room;
  room.contexts = 10;
  room.spans = 100;
  {
    SamplingWindows hostile(&room), quiet(&room);
    flood(hostile, 50, 40);
    EXPECT_EQ(room.contexts, 0u);
    EXPECT_EQ(room.spans, 0u);
    EXPECT_EQ(hostile.counts().check(), "");
    EXPECT_NE(hostile.counts().refused, 0u);
    EXPECT_EQ(at(hostile, 150), Serialized::kUnknown) << "forgotten";
    EXPECT_EQ(at(hostile, 39'150), Serialized::kTrue) << "the newest stay";
    EXPECT_EQ(at(hostile, 39'150, 50), Serialized::kUnknown) << "of a context beyond the bound";
    flood(quiet, SamplingWindows::kReservedContexts,
          SamplingWindows::kReservedSpans / SamplingWindows::kReservedContexts);
    EXPECT_EQ(quiet.counts().refused, 0u);
    for (uint32_t context = 1; context <= SamplingWindows::kReservedContexts; ++context) {
      EXPECT_EQ(at(quiet, 150, context), Serialized::kTrue);
      EXPECT_EQ(at(quiet, 250, context), Serialized::kFalse);
    }
  }
  EXPECT_EQ(room.contexts, 10u) << "given back";
  EXPECT_EQ(room.spans, 100u);
}

TEST(SamplingWindows, AContextWithoutRoomForAnySpanIsUnknown) {
  SamplingRoom room;
  room.contexts = 10;
  room.spans = 0;
  SamplingWindows windows(&room);
  flood(windows, 1, SamplingWindows::kReservedSpans);
  gpuprof_window_v1 record = window(kOpen, 9999, 100, kSerialized);
  record.context_id = 2;
  windows.add(record);
  record = window(kClose, 9999, 200, kSerialized);
  record.context_id = 2;
  windows.add(record);
  EXPECT_EQ(at(windows, 150, 2), Serialized::kUnknown);
  EXPECT_EQ(at(windows, 250, 2), Serialized::kFalse);
}

}  // namespace
}  // namespace gpuprof::join

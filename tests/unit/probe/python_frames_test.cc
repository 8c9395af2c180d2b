// SPDX-License-Identifier: Apache-2.0
#include "daemon/probe/python_frames.h"

#include <gtest/gtest.h>

namespace gpuprof::probe {
namespace {

constexpr uint32_t kChunk = GPUPROF_PYTHON_CHUNK_FRAMES;

gpuprof_ring_header header(uint64_t seq, uint32_t tid = 7) {
  gpuprof_ring_header out{};
  out.start_boottime = 5'000'000'000;
  out.seq = seq;
  out.pid = 42;
  out.tid = tid;
  out.exec_id = 3;
  return out;
}

// Full chunks before it have frames 1, 2, 3, ... by their addresses.
gpuprof_python_chunk chunk(uint32_t number, uint32_t count, uint32_t end) {
  gpuprof_python_chunk out{};
  out.number = number;
  out.count = count;
  out.end = end;
  for (uint32_t i = 0; i < count; ++i) out.frames[i].address = number * kChunk + i + 1;
  return out;
}

void expect_frames(const PythonFrames::Frames& frames, size_t count, uint32_t end) {
  ASSERT_EQ(frames.frames.size(), count);
  for (size_t i = 0; i < count; ++i) EXPECT_EQ(frames.frames[i].address, i + 1);
  EXPECT_EQ(frames.end, end);
}

TEST(PythonFrames, AreKeptUntilTheirLaunchAndTakenOnce) {
  PythonFrames python;
  ASSERT_TRUE(python.add(header(5), chunk(0, kChunk, GPUPROF_PYTHON_MORE)));
  ASSERT_TRUE(python.add(header(5), chunk(1, 3, GPUPROF_PYTHON_WHOLE)));
  expect_frames(python.take(header(5)), kChunk + 3, GPUPROF_PYTHON_WHOLE);
  expect_frames(python.take(header(5)), 0, GPUPROF_PYTHON_MORE);
}

TEST(PythonFrames, OfASecondInterpreterFollowTheFirstOnes) {
  PythonFrames python;
  python.add(header(5), chunk(0, 3, GPUPROF_PYTHON_WHOLE));
  python.add(header(5), chunk(1, 2, GPUPROF_PYTHON_WHOLE));
  const PythonFrames::Frames& frames = python.take(header(5));
  ASSERT_EQ(frames.frames.size(), 5u);
  EXPECT_EQ(frames.frames[2].address, 3u);
  EXPECT_EQ(frames.frames[3].address, kChunk + 1);
  EXPECT_EQ(frames.end, GPUPROF_PYTHON_WHOLE);
}

TEST(PythonFrames, OfThreadsDoNotMix) {
  PythonFrames python;
  python.add(header(5, 7), chunk(0, kChunk, GPUPROF_PYTHON_MORE));
  python.add(header(6, 8), chunk(0, 2, GPUPROF_PYTHON_WHOLE));
  python.add(header(5, 7), chunk(1, 1, GPUPROF_PYTHON_WHOLE));
  expect_frames(python.take(header(6, 8)), 2, GPUPROF_PYTHON_WHOLE);
  expect_frames(python.take(header(5, 7)), kChunk + 1, GPUPROF_PYTHON_WHOLE);
}

TEST(PythonFrames, OfALaunchThatNeverCameAreNobodysElse) {
  PythonFrames python;
  python.add(header(5), chunk(0, 4, GPUPROF_PYTHON_WHOLE));
  expect_frames(python.take(header(6)), 0, GPUPROF_PYTHON_MORE);
  python.add(header(7), chunk(0, 2, GPUPROF_PYTHON_WHOLE));
  expect_frames(python.take(header(7)), 2, GPUPROF_PYTHON_WHOLE);
  // The same number in another image of the process.
  python.add(header(8), chunk(0, 2, GPUPROF_PYTHON_WHOLE));
  gpuprof_ring_header other = header(8);
  other.exec_id = 4;
  expect_frames(python.take(other), 0, GPUPROF_PYTHON_MORE);
}

TEST(PythonFrames, AChunkThatWasLostLeavesTheRestOut) {
  PythonFrames python;
  python.add(header(5), chunk(0, kChunk, GPUPROF_PYTHON_MORE));
  ASSERT_TRUE(python.add(header(5), chunk(2, 1, GPUPROF_PYTHON_WHOLE)));
  expect_frames(python.take(header(5)), kChunk, GPUPROF_PYTHON_MORE);
  // Without the first there is nothing, whole or not.
  python.add(header(6), chunk(1, 1, GPUPROF_PYTHON_WHOLE));
  expect_frames(python.take(header(6)), 0, GPUPROF_PYTHON_MORE);
}

TEST(PythonFrames, OfALaunchThatFiredAgainReplaceTheFirst) {
  PythonFrames python;
  python.add(header(5), chunk(0, kChunk, GPUPROF_PYTHON_MORE));
  python.add(header(5), chunk(0, 3, GPUPROF_PYTHON_WHOLE));
  expect_frames(python.take(header(5)), 3, GPUPROF_PYTHON_WHOLE);
}

TEST(PythonFrames, WhatCannotBeIsRefused) {
  PythonFrames python;
  gpuprof_python_chunk bad = chunk(0, 1, GPUPROF_PYTHON_WHOLE);
  bad.count = kChunk + 1;
  EXPECT_FALSE(python.add(header(5), bad));
  EXPECT_FALSE(python.add(header(5), chunk(0, 1, GPUPROF_PYTHON_FAULT + 1)));
  EXPECT_FALSE(python.add(header(5), chunk(GPUPROF_PYTHON_MAX_CHUNKS, 1, GPUPROF_PYTHON_WHOLE)));
  expect_frames(python.take(header(5)), 0, GPUPROF_PYTHON_MORE);
}

TEST(PythonFrames, ThreadsAreBounded) {
  PythonFrames python;
  for (uint32_t tid = 1; tid <= 3 * PythonFrames::kMaxThreads; ++tid)
    ASSERT_TRUE(python.add(header(tid, tid), chunk(0, 1, GPUPROF_PYTHON_WHOLE)));
  EXPECT_LE(python.threads(), PythonFrames::kMaxThreads);
  expect_frames(python.take(header(3 * PythonFrames::kMaxThreads, 3 * PythonFrames::kMaxThreads)),
                1, GPUPROF_PYTHON_WHOLE);
}

}  // namespace
}  // namespace gpuprof::probe

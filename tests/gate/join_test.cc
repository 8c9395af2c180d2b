// SPDX-License-Identifier: Apache-2.0
//
// Gate06 and Gate08 on the joiner alone, with bounds that a run never meets.
#include <gtest/gtest.h>

#include "tests/unit/join/fake_frames.h"
#include "tests/unit/join/pc_records.h"

namespace gpuprof::join {
namespace {

using namespace testing;

constexpr uint32_t kSamples = 10'000;
constexpr uint64_t kPairs = 50;

// Every cache that is keyed by a correlation holds next to nothing, and everything is old.
TEST(Gate06, ContinuousSamplesNeedNoCacheOfCorrelations) {
  JoinerLimits limits;
  limits.max_serialized_executions = 1;
  limits.max_launches = 1;
  limits.max_pc_waiting = 1;
  limits.grace_ns = 1;
  limits.pc_grace_ns = 1;
  Joiner joiner(limits);
  FakeFrames frames;
  FakeDevice device;
  uint64_t now_ns = kSecond;
  for (uint64_t pair = 0; pair < kPairs; ++pair) {
    const uint64_t kernel = 1 + pair;
    frames[kProcess].kernels[kernel] = "kernel" + std::to_string(kernel);
    const auto correlation = static_cast<uint32_t>(kernel);
    joiner.add_launch(kProcess, launch(correlation), static_cast<StackId>(kernel), 1);
    add(joiner, exec(correlation, kernel, 1000));
    joiner.advance(now_ns += 10 * kSecond);
  }
  for (uint32_t i = 0; i < kSamples; ++i) {
    gpuprof_pc_sample_v1 record = pc_sample(1 + i % kPairs, i / kPairs % 7 * 16, 1);
    record.cubin_key = kCubin + i % kPairs;
    add(joiner, record);
    if (i % 1000 == 0) joiner.advance(now_ns += kSecond);
  }
  const JoinResult result = joiner.finish_window(&frames, &device);
  ASSERT_EQ(result.processes.size(), 1u);
  const PcAccounting& pc = result.processes[0].window.pc;
  EXPECT_EQ(result.processes[0].window.check(), "");
  EXPECT_EQ(pc.samples, kSamples);
  EXPECT_EQ(pc.refused + pc.pending + pc.unnamed, 0u);
  EXPECT_EQ(pc.attrib[static_cast<size_t>(PcAttrib::kKernel)], kSamples);
  std::map<std::pair<uint64_t, uint64_t>, uint64_t> by_pair;
  for (const PcRow& row : result.pc_rows) {
    const PcFunction& function = result.pc_functions[row.function];
    by_pair[{function.cubin_key, function.function_name_id}] += row.samples;
  }
  EXPECT_EQ(by_pair.size(), kPairs);
  for (const auto& [pair, samples] : by_pair) EXPECT_EQ(samples, kSamples / kPairs);
}

TEST(Gate08, FalseIsNeverADefault) {
  EXPECT_EQ(Serialized{}, Serialized::kUnknown);
  EXPECT_EQ(Row{}.serialized, Serialized::kUnknown);
  EXPECT_STREQ(serialized_name(Serialized{}), "unknown");
  EXPECT_EQ(SamplingWindows().at(0, 1, 1'000'000), Serialized::kUnknown);
}

TEST(Gate08, WithoutWindowsExecutionsAreUnknown) {
  Joiner joiner;
  FakeFrames frames;
  FakeDevice device;
  joiner.add_launch(kProcess, launch(1), 11, 1);
  add(joiner, exec(1, 9, 1000));
  gpuprof_exec_v1 other = exec(2, 9, 1000);
  other.context_id = 2;
  joiner.add_window(kProcess, window(GPUPROF_WINDOW_OPEN, 1, 1'000'000, 2));
  add(joiner, other);
  const JoinResult result = joiner.finish_window(&frames, &device);
  for (const Row& row : result.rows) EXPECT_EQ(row.serialized, Serialized::kUnknown);
}

// The exit of a process whose last window is open says nothing of what came after.
TEST(Gate08, AHardExitInAWindowLeavesNothingFalse) {
  SamplingWindows windows;
  windows.add(window(GPUPROF_WINDOW_OPEN, 1, 100, 2));
  windows.add(window(GPUPROF_WINDOW_CLOSE, 1, 200, 2));
  windows.add(window(GPUPROF_WINDOW_OPEN, 2, 300, 2));
  windows.add_loss();
  EXPECT_EQ(windows.at(0, 1, 150), Serialized::kTrue);
  EXPECT_EQ(windows.at(0, 1, 250), Serialized::kFalse) << "a proven gap";
  for (const uint64_t after : {300u, 301u, 5000u})
    EXPECT_EQ(windows.at(0, 1, after), Serialized::kUnknown) << after;
  EXPECT_EQ(windows.counts().open, 1u);
}

}  // namespace
}  // namespace gpuprof::join

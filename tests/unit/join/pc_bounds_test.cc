// SPDX-License-Identifier: Apache-2.0
//
// Bounds on PC samples: what they fold stays in the totals, and whom they hit.
#include <gtest/gtest.h>

#include <set>

#include "tests/unit/join/fake_frames.h"
#include "tests/unit/join/pc_records.h"

namespace gpuprof::join {
namespace {

using namespace testing;

constexpr ProcessId kOther{200, 9};

class PcBounds : public ::testing::Test {
 protected:
  static void launched(Joiner& joiner, ProcessId process, uint32_t id, StackId stack,
                       uint64_t kernel, uint64_t ns) {
    joiner.add_launch(process, launch(id), stack, 1);
    add(joiner, exec(id, kernel, ns), process);
  }
  JoinResult finish(Joiner& joiner) {
    JoinResult result = joiner.finish_window(&frames_, &device_);
    std::vector<uint64_t> samples(result.processes.size());
    for (const PcRow& pc : result.pc_rows) samples[result.rows[pc.row].process] += pc.samples;
    for (size_t i = 0; i < samples.size(); ++i) {
      EXPECT_EQ(result.processes[i].window.check(), "");
      EXPECT_EQ(samples[i], result.processes[i].window.pc.samples);
    }
    return result;
  }
  static std::set<uint32_t> instructions(const JoinResult& result, ProcessId process) {
    std::set<uint32_t> out;
    for (const PcRow& pc : result.pc_rows) {
      if (result.processes[result.rows[pc.row].process].process == process)
        out.insert(pc.pc_offset);
    }
    return out;
  }

  FakeFrames frames_;
  FakeDevice device_;
};

TEST_F(PcBounds, LightInstructionsFoldIntoTheirFunction) {
  JoinerLimits limits;
  limits.max_pc_rows = 400;
  Joiner joiner(limits);
  for (uint32_t id = 1; id <= 100; ++id) launched(joiner, kProcess, id, id, 9, 1000 * id);
  for (uint32_t pc = 0; pc < 1000; ++pc) add(joiner, pc_sample(9, pc * 16, 100 + pc));
  const JoinResult result = finish(joiner);
  EXPECT_LE(result.pc_rows.size(), 400u);
  EXPECT_GE(result.pc_rows.size(), 200u);
  const std::set<uint32_t> kept = instructions(result, kProcess);
  EXPECT_TRUE(kept.contains(999 * 16));  // the heaviest
  EXPECT_FALSE(kept.contains(0));
  EXPECT_TRUE(kept.contains(kFolded));
  EXPECT_GT(result.stats.pc_folded, 0u);
  EXPECT_GT(result.stats.pc_stacks_trimmed, 0u);
  EXPECT_EQ(result.processes[0].window.pc.samples, 1000u * 100 + 999 * 500);
  // What is not split keeps its place: the lightest call path's GPU time is still its own.
  EXPECT_EQ(by_stack(result).at(1).time_ns, 1000u);
}

// Instructions of one sample are on one call path each, however many there are.
TEST_F(PcBounds, FewSamplesNeedLittleRoom) {
  JoinerLimits limits;
  limits.max_pc_rows = 1000;
  Joiner joiner(limits);
  for (uint32_t id = 1; id <= 100; ++id) launched(joiner, kProcess, id, id, 9, 1000);
  for (uint32_t pc = 0; pc < 900; ++pc) add(joiner, pc_sample(9, pc * 16, 1));
  const JoinResult result = finish(joiner);
  EXPECT_EQ(result.pc_rows.size(), 900u);
  EXPECT_EQ(result.stats.pc_folded, 0u);
  EXPECT_EQ(result.stats.pc_stacks_trimmed, 0u);
  // And they are shared out evenly.
  std::map<StackId, uint64_t> by_path;
  for (const PcRow& pc : result.pc_rows) by_path[result.rows[pc.row].stack] += pc.samples;
  EXPECT_EQ(by_path.size(), 100u);
  for (const auto& [stack, samples] : by_path) EXPECT_EQ(samples, 9u) << stack;
}

TEST_F(PcBounds, OneProcessCannotFoldAnothersInstructions) {
  JoinerLimits limits;
  limits.max_pc_rows = 1000;
  Joiner joiner(limits);
  launched(joiner, kProcess, 1, 1, 9, 1000);
  launched(joiner, kOther, 1, 1, 9, 1000);
  for (uint32_t pc = 0; pc < 50'000; ++pc) add(joiner, pc_sample(9, pc * 16, 1000), kOther);
  for (uint32_t pc = 0; pc < 400; ++pc) add(joiner, pc_sample(9, pc * 16, 1));
  const JoinResult result = finish(joiner);
  EXPECT_LE(result.pc_rows.size(), 1001u);
  EXPECT_EQ(instructions(result, kProcess).size(), 400u);
  EXPECT_FALSE(instructions(result, kProcess).contains(kFolded));
  EXPECT_TRUE(instructions(result, kOther).contains(kFolded));
}

TEST_F(PcBounds, InstructionsBeyondTheTableCountForTheirFunctionAndItsStall) {
  JoinerLimits limits;
  limits.max_pc_entries_per_process = 10;
  Joiner joiner(limits);
  launched(joiner, kProcess, 1, 1, 9, 1000);
  for (uint32_t pc = 0; pc < 30; ++pc) add(joiner, pc_sample(9, pc * 16, 1, kLong));
  const JoinResult result = finish(joiner);
  EXPECT_EQ(instructions(result, kProcess).size(), 11u);
  EXPECT_EQ(result.stats.pc_folded, 20u);
  EXPECT_EQ(result.processes[0].window.pc.refused, 0u);
  AssembleStats stats;
  StackTable stacks;
  const Model model = assemble(result, stacks, frames_, &device_, {}, &stats);
  EXPECT_EQ(stats.sources.at(0).folded, 20u);
  EXPECT_EQ(stats.sources.at(0).of(cubin::SourceStatus::kNoModule), 10u);
  int64_t samples = 0;
  for (const ModelSample& sample : model.samples) samples += sample.values[kGpuPcSamples];
  EXPECT_EQ(samples, 30);
}

TEST_F(PcBounds, WhatHasNoRoomAtAllIsRefusedAndCounted) {
  JoinerLimits limits;
  limits.max_pc_entries_per_process = 8;
  limits.max_pc_sources_per_process = 20;
  Joiner joiner(limits);
  for (uint64_t function = 1; function <= 40; ++function) add(joiner, pc_sample(function, 16, 1));
  const JoinResult result = finish(joiner);
  const PcAccounting& pc = result.processes.at(0).window.pc;
  EXPECT_EQ(pc.records, 40u);
  EXPECT_EQ(pc.samples, 10u);  // 8, and 5/4 of that for folded ones
  EXPECT_EQ(pc.refused, 30u);
}

TEST_F(PcBounds, StallsBeyondTheLabelsLimitLoseTheirLabelOnly) {
  class Hostile : public FakeDevice {
   public:
    std::string_view stall_name(ProcessId, uint32_t, uint32_t index) override {
      name_ = "smsp__pcsamp_warps_issue_stalled_" + std::to_string(index);
      return name_;
    }

   private:
    std::string name_;
  } hostile;
  Joiner joiner;
  launched(joiner, kProcess, 1, 1, 9, 1000);
  for (uint32_t stall = 0; stall < 3000; ++stall) add(joiner, pc_sample(9, 16, 1, stall));
  const JoinResult result = joiner.finish_window(&frames_, &hostile);
  AssembleStats stats;
  StackTable stacks;
  const Model model = assemble(result, stacks, frames_, &hostile, {}, &stats);
  EXPECT_LE(model.label_sets.size(), 1010u);
  EXPECT_EQ(stats.labels_suppressed, 2000u);
  int64_t samples = 0;
  for (const ModelSample& sample : model.samples) samples += sample.values[kGpuPcSamples];
  EXPECT_EQ(samples, 3000);
}

}  // namespace
}  // namespace gpuprof::join

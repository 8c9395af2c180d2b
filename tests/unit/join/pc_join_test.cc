// SPDX-License-Identifier: Apache-2.0
//
// PC samples find their call paths, and say how.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/join/fake_frames.h"
#include "tests/unit/join/pc_records.h"

namespace gpuprof::join {
namespace {

using namespace testing;

class PcJoin : public ::testing::Test {
 protected:
  void launched(uint32_t correlation, StackId stack, const gpuprof_exec_v1& record) {
    joiner_.add_launch(kProcess, launch(correlation), stack, 1);
    add(joiner_, record);
  }
  JoinResult finish() {
    JoinResult result = joiner_.finish_window(&frames_, &device_);
    for (const ProcessResult& process : result.processes) {
      EXPECT_EQ(process.window.check(), "");
      EXPECT_EQ(process.lifetime.check(), "");
      EXPECT_EQ(process.windows.check(), "");
      EXPECT_EQ(process.window.pc.pending, 0u);
    }
    check_rows(result);
    return result;
  }
  // PC rows hand out a row's time and executions wholly or not at all.
  static void check_rows(const JoinResult& result) {
    std::map<uint32_t, Sum> by_row;
    for (const PcRow& pc : result.pc_rows) {
      ASSERT_LT(pc.row, result.rows.size());
      ASSERT_LT(pc.function, result.pc_functions.size());
      by_row[pc.row].executions += pc.executions;
      by_row[pc.row].time_ns += pc.time_ns;
    }
    for (const auto& [row, sum] : by_row) {
      const Sum whole{result.rows[row].executions, result.rows[row].time_ns};
      EXPECT_TRUE(sum == whole || sum == Sum()) << row;
    }
  }
  static uint64_t attributed(const JoinResult& result, PcAttrib attrib) {
    return result.processes.at(0).window.pc.attrib[static_cast<size_t>(attrib)];
  }
  static std::map<StackId, uint64_t> samples_by_stack(const JoinResult& result) {
    std::map<StackId, uint64_t> out;
    for (const PcRow& pc : result.pc_rows) out[result.rows[pc.row].stack] += pc.samples;
    return out;
  }

  FakeFrames frames_;
  FakeDevice device_;
  Joiner joiner_;
};

using Samples = std::map<StackId, uint64_t>;

TEST_F(PcJoin, OneCallPathGetsAllSamplesOfItsKernel) {
  launched(1, 11, exec(1, 9, 1000));
  add(joiner_, pc_sample(9, 0x10, 30));
  add(joiner_, pc_sample(9, 0x20, 10));
  add(joiner_, pc_sample(9, 0x10, 5));
  const JoinResult result = finish();
  EXPECT_EQ(attributed(result, PcAttrib::kKernel), 45u);
  ASSERT_EQ(result.pc_rows.size(), 2u);
  EXPECT_EQ(result.pc_rows[0].pc_offset, 0x10u);
  EXPECT_EQ(result.pc_rows[0].samples, 35u);
  EXPECT_EQ(result.pc_rows[0].time_ns, 778u);  // 1000 · 35 / 45, rounded
  EXPECT_EQ(result.pc_rows[1].time_ns, 222u);
  EXPECT_EQ(result.pc_rows[0].executions, 1u);
  EXPECT_EQ(result.pc_rows[1].executions, 0u);
  EXPECT_EQ(result.stalls.at(result.pc_rows[0].stall), "wait");
}

TEST_F(PcJoin, SeveralCallPathsShareByGpuTime) {
  launched(1, 11, exec(1, 9, 3000));
  launched(2, 12, exec(2, 9, 1000));
  launched(3, 12, exec(3, 8, 9000));  // another kernel
  add(joiner_, pc_sample(9, 0x10, 100));
  const JoinResult result = finish();
  EXPECT_EQ(attributed(result, PcAttrib::kKernelAmbiguous), 100u);
  EXPECT_EQ(samples_by_stack(result), (Samples{{11, 75}, {12, 25}}));
}

TEST_F(PcJoin, CountersAreToldApartByName) {
  launched(1, 11, exec(1, 9, 1000));
  add(joiner_, pc_sample(9, 0x10, 30, kWait));
  add(joiner_, pc_sample(9, 0x10, 20, kWaitNotIssued));
  add(joiner_, pc_sample(9, 0x10, 7, kLong));
  add(joiner_, pc_sample(9, 0x10, 37, kSampleCount));
  add(joiner_, pc_sample(9, 0x10, 3, kDropped));
  add(joiner_, pc_sample(9, 0x10, 5, kNoSuchStall));
  const JoinResult result = finish();
  const PcAccounting& pc = result.processes.at(0).window.pc;
  EXPECT_EQ(pc.records, 6u);
  EXPECT_EQ(pc.counts, 102u);
  EXPECT_EQ(pc.samples, 37u);
  EXPECT_EQ(pc.not_issued, 20u);
  EXPECT_EQ(pc.other, 40u);
  EXPECT_EQ(pc.unnamed, 5u);
  ASSERT_EQ(result.pc_rows.size(), 2u);
  EXPECT_EQ(result.pc_rows[0].samples, 30u);
  EXPECT_EQ(result.pc_rows[0].stall_samples, 20u);
  EXPECT_EQ(result.stalls.at(result.pc_rows[1].stall), "long_scoreboard");
  EXPECT_EQ(result.pc_rows[1].samples, 7u);
}

TEST_F(PcJoin, WithoutSourcesNothingIsClaimed) {
  launched(1, 11, exec(1, 9, 1000));
  add(joiner_, pc_sample(9, 0x10, 30));
  const JoinResult result = joiner_.finish_window();
  EXPECT_TRUE(result.pc_rows.empty());
  EXPECT_EQ(result.processes.at(0).window.pc.unnamed, 30u);
  EXPECT_EQ(result.processes.at(0).window.check(), "");
}

TEST_F(PcJoin, AnotherDeviceIsSaid) {
  launched(1, 11, exec(1, 9, 1000));
  gpuprof_pc_sample_v1 elsewhere = pc_sample(9, 0x10, 30);
  elsewhere.device_id = UINT32_MAX;
  add(joiner_, elsewhere);
  const JoinResult result = finish();
  EXPECT_EQ(attributed(result, PcAttrib::kKernelMultidevice), 30u);
  EXPECT_EQ(samples_by_stack(result), (Samples{{11, 30}}));
}

TEST_F(PcJoin, ADeviceThatToldNoNamesSaysNothing) {
  launched(1, 11, exec(1, 9, 1000));
  gpuprof_pc_sample_v1 elsewhere = pc_sample(9, 0x10, 30);
  elsewhere.device_id = 7;
  add(joiner_, elsewhere);
  const JoinResult result = finish();
  EXPECT_EQ(result.processes[0].window.pc.unnamed, 30u);
  EXPECT_TRUE(result.pc_rows.empty());
}

TEST_F(PcJoin, WhatHasNoNameIsNotJoinedToOthersWithoutOne) {
  launched(1, 11, exec(1, 0, 1000));
  add(joiner_, pc_sample(0, 0x10, 30));
  EXPECT_EQ(attributed(finish(), PcAttrib::kUnattributed), 30u);
}

TEST_F(PcJoin, AnotherContextOfTheDeviceIsAnEstimate) {
  launched(1, 11, exec(1, 9, 1000));
  gpuprof_pc_sample_v1 elsewhere = pc_sample(9, 0x10, 30);
  elsewhere.context_id = 2;
  add(joiner_, elsewhere);
  EXPECT_EQ(attributed(finish(), PcAttrib::kKernelAmbiguous), 30u);
}

TEST_F(PcJoin, TheSampledContextsExecutionsOnly) {
  launched(1, 11, exec(1, 9, 1000));
  gpuprof_exec_v1 other = exec(2, 9, 9000);
  other.context_id = 2;
  launched(2, 12, other);
  add(joiner_, pc_sample(9, 0x10, 30));
  const JoinResult result = finish();
  EXPECT_EQ(attributed(result, PcAttrib::kKernel), 30u);
  EXPECT_EQ(samples_by_stack(result), (Samples{{11, 30}}));
}

TEST_F(PcJoin, SameNameInTwoModulesIsAmbiguous) {
  launched(1, 11, exec(1, 9, 1000));
  gpuprof_pc_sample_v1 other = pc_sample(9, 0x10, 30);
  other.cubin_key = kCubin + 1;
  add(joiner_, other);
  add(joiner_, pc_sample(9, 0x10, 10));
  const JoinResult result = finish();
  EXPECT_EQ(attributed(result, PcAttrib::kKernelAmbiguous), 40u);
  ASSERT_EQ(result.pc_functions.size(), 2u);
  EXPECT_NE(result.pc_functions[0].cubin_key, result.pc_functions[1].cubin_key);
}

TEST_F(PcJoin, NoExecutionIsUnattributedNotLost) {
  launched(1, 11, exec(1, 9, 1000));
  add(joiner_, pc_sample(8, 0x10, 30));
  add(joiner_, pc_sample(8, 0x20, 3));
  const JoinResult result = finish();
  EXPECT_EQ(attributed(result, PcAttrib::kUnattributed), 33u);
  ASSERT_EQ(result.pc_rows.size(), 2u);
  const Row& row = result.rows.at(result.pc_rows[0].row);
  EXPECT_EQ(row.match, Match::kInvalid);
  EXPECT_EQ(row.name_id, 8u);
  EXPECT_EQ(row.executions, 0u);
  EXPECT_EQ(row.time_ns, 0u);
}

TEST_F(PcJoin, CorrelationIsExactInEveryOrderOfTheRecords) {
  for (int order = 0; order < 6; ++order) {
    Joiner joiner;
    const gpuprof_window_v1 open = window(GPUPROF_WINDOW_OPEN, 1, 1, 2);
    joiner.add_window(kProcess, open);
    joiner.add_launch(kProcess, launch(2), 12, 1);
    add(joiner, exec(2, 9, 5000));
    int steps[] = {0, 1, 2};
    for (int i = 0; i < order; ++i) std::next_permutation(std::begin(steps), std::end(steps));
    uint64_t now = kSecond;
    for (const int step : steps) {
      joiner.advance(now += 100'000'000);
      if (step == 0) joiner.add_launch(kProcess, launch(1), 11, 1);
      if (step == 1) add(joiner, exec(1, 9, 1000));
      if (step == 2) add(joiner, pc_sample(9, 0x10, 30, kWait, 1));
    }
    const JoinResult result = joiner.finish_window(&frames_, &device_);
    EXPECT_EQ(attributed(result, PcAttrib::kExact), 30u) << order;
    EXPECT_EQ(samples_by_stack(result), (Samples{{11, 30}})) << order;
    EXPECT_EQ(result.processes[0].window.check(), "");
  }
}

TEST_F(PcJoin, ExactSamplesCarryTheTimeOfTheirOwnExecution) {
  joiner_.add_window(kProcess, window(GPUPROF_WINDOW_OPEN, 1, 1, 2));
  launched(1, 11, exec(1, 9, 1000));
  launched(2, 12, exec(2, 9, 5000));
  add(joiner_, pc_sample(9, 0x10, 3, kWait, 1));
  add(joiner_, pc_sample(9, 0x20, 1, kWait, 1));
  add(joiner_, pc_sample(9, 0x10, 7, kWait, 2));
  const JoinResult result = finish();
  std::map<std::pair<StackId, uint32_t>, uint64_t> times;
  for (const PcRow& pc : result.pc_rows)
    times[{result.rows[pc.row].stack, pc.pc_offset}] = pc.time_ns;
  EXPECT_EQ(times, (std::map<std::pair<StackId, uint32_t>, uint64_t>{
                       {{11, 0x10}, 750}, {{11, 0x20}, 250}, {{12, 0x10}, 5000}}));
  EXPECT_EQ(result.rows.size(), 2u);
}

TEST_F(PcJoin, CorrelationOfAnUnsampledLaunchIsItsExecutionsExact) {
  joiner_.add_window(kProcess, window(GPUPROF_WINDOW_OPEN, 1, 1, 2));
  launched(1, 11, exec(1, 8, 1000));
  add(joiner_, exec(2, 9, 500));
  add(joiner_, pc_sample(9, 0x10, 30, kWait, 2));
  const JoinResult result = finish();
  EXPECT_EQ(attributed(result, PcAttrib::kExact), 30u);
  const Row& row = result.rows.at(result.pc_rows.at(0).row);
  EXPECT_EQ(row.match, Match::kUnmatched);
  EXPECT_EQ(row.executions, 1u);
}

TEST_F(PcJoin, AnyNumberOfExecutionsLeavesTheLatestExact) {
  joiner_.add_window(kProcess, window(GPUPROF_WINDOW_OPEN, 1, 1, 2));
  launched(1, 11, exec(1, 9, 1000));
  add(joiner_, pc_sample(9, 0x10, 1, kWait, 1));
  constexpr uint32_t kOthers = 300'000;  // in the same second: none is old
  for (uint32_t id = 2; id < kOthers; ++id) add(joiner_, exec(id, 9, 10));
  launched(kOthers, 12, exec(kOthers, 9, 500));
  add(joiner_, pc_sample(9, 0x10, 30, kWait, kOthers));
  add(joiner_, pc_sample(9, 0x10, 20, kWait, kOthers - 60'000));
  EXPECT_EQ(attributed(finish(), PcAttrib::kExact), 51u);
}

TEST_F(PcJoin, CorrelationOfAnUnsampledLaunchIsNoneOfWhatHadNoLaunch) {
  joiner_.add_window(kProcess, window(GPUPROF_WINDOW_OPEN, 1, 1, 2));
  for (const uint32_t flag : {GPUPROF_EXEC_BEFORE_ARM, GPUPROF_EXEC_DEVICE_LAUNCHED}) {
    gpuprof_exec_v1 record = exec(100 + flag, 9, 50'000);
    record.flags = flag;
    add(joiner_, record);
  }
  add(joiner_, exec(1, 9, 500));
  add(joiner_, pc_sample(9, 0x10, 30, kWait, 1));
  const JoinResult result = finish();
  EXPECT_EQ(attributed(result, PcAttrib::kExact), 30u);
  ASSERT_EQ(result.pc_rows.size(), 1u);
  const Row& row = result.rows.at(result.pc_rows[0].row);
  EXPECT_EQ(row.reason, Unmatched::kNoSample);
  EXPECT_EQ(row.time_ns, 500u);
}

TEST_F(PcJoin, AGraphsCorrelationIsNeverExact) {
  joiner_.add_window(kProcess, window(GPUPROF_WINDOW_OPEN, 1, 1, 2));
  joiner_.add_launch(kProcess, launch(1, 1.0, 1, GPUPROF_KIND_GRAPH), 11, 1);
  for (uint64_t node = 1; node <= 2; ++node) {
    gpuprof_exec_v1 record = exec(1, 9, 1000);
    record.graph_id = 5;
    record.graph_node = node;
    add(joiner_, record);
  }
  add(joiner_, pc_sample(9, 0x10, 30, kWait, 1));
  const JoinResult result = finish();
  EXPECT_EQ(attributed(result, PcAttrib::kGraphRefused), 30u);
  EXPECT_EQ(attributed(result, PcAttrib::kExact), 0u);
  EXPECT_EQ(samples_by_stack(result), (Samples{{11, 30}}));
}

TEST_F(PcJoin, AGraphsCorrelationIsRefusedWithoutItsLaunch) {
  joiner_.add_window(kProcess, window(GPUPROF_WINDOW_OPEN, 1, 1, 2));
  for (uint64_t node = 1; node <= 2; ++node) {
    gpuprof_exec_v1 record = exec(1, 9, 1000);
    record.graph_node = node;  // even where the graph's id is not told
    add(joiner_, record);
  }
  add(joiner_, pc_sample(9, 0x10, 30, kWait, 1));
  EXPECT_EQ(attributed(finish(), PcAttrib::kGraphRefused), 30u);
}

TEST_F(PcJoin, ACorrelationThatNothingHasIsJoinedByKernel) {
  launched(1, 11, exec(1, 9, 1000));
  add(joiner_, pc_sample(9, 0x10, 30, kWait, 77));
  add(joiner_, pc_sample(8, 0x10, 3, kWait, 78));
  const JoinResult result = finish();
  EXPECT_EQ(attributed(result, PcAttrib::kKernel), 30u);
  EXPECT_EQ(attributed(result, PcAttrib::kUnattributed), 3u);
}

// A correlation of another kernel's execution is wrong, of whichever of the two.
TEST_F(PcJoin, ACorrelationOfAnotherKernelIsNotBelieved) {
  joiner_.add_window(kProcess, window(GPUPROF_WINDOW_OPEN, 1, 1, 2));
  launched(1, 11, exec(1, 9, 1000));
  launched(2, 12, exec(2, 8, 1000));
  add(joiner_, pc_sample(9, 0x10, 30, kWait, 2));  // kernel 8's
  add(joiner_, pc_sample(7, 0x10, 3, kWait, 2));   // never executed, in no image
  add(joiner_, pc_sample(8, 0x10, 5, kWait, 2));
  add(joiner_, pc_sample(0, 0x10, 2, kWait, 2));  // of what has no name
  const JoinResult result = finish();
  EXPECT_EQ(attributed(result, PcAttrib::kExact), 7u);
  EXPECT_EQ(attributed(result, PcAttrib::kKernel), 30u);
  EXPECT_EQ(attributed(result, PcAttrib::kUnattributed), 3u);
  EXPECT_EQ(samples_by_stack(result), (Samples{{kNoStack, 3}, {11, 30}, {12, 7}}));
}

TEST_F(PcJoin, ASampleOfTheNextWindowKeepsItsCallPath) {
  joiner_.add_window(kProcess, window(GPUPROF_WINDOW_OPEN, 1, 1, 2));
  launched(1, 11, exec(1, 9, 1000));
  finish();
  add(joiner_, pc_sample(9, 0x10, 30, kWait, 1));
  const JoinResult result = finish();
  EXPECT_EQ(attributed(result, PcAttrib::kExact), 30u);
  EXPECT_EQ(samples_by_stack(result), (Samples{{11, 30}}));
  EXPECT_EQ(by_match(result), (std::map<Match, Sum>{{Match::kExact, Sum()}}));
}

TEST_F(PcJoin, RecordsLostAndRefusedAreCounted) {
  JoinerLimits limits;
  limits.max_processes = 1;
  limits.max_pc_sources = 1;
  Joiner joiner(limits);
  add(joiner, pc_sample(9, 0x10, 30));
  add(joiner, pc_sample(8, 0x10, 4));
  add(joiner, pc_sample(9, 0x10, 5), ProcessId{200, 1});
  joiner.add_ring_loss(kProcess, GPUPROF_PROBE_PC_SAMPLE, 3, 0);
  joiner.set_pc_emitted(kProcess, 5);
  const JoinResult result = joiner.finish_window(&frames_, &device_);
  ASSERT_EQ(result.processes.size(), 2u);
  const Accounting& mine = result.processes[0].lifetime;
  EXPECT_EQ(mine.check(), "");
  EXPECT_EQ(mine.pc.refused, 4u);
  EXPECT_EQ(mine.pc.samples, 30u);
  EXPECT_EQ(result.processes[1].window.pc.refused, 5u);
  EXPECT_EQ(result.processes[1].window.check(), "");
}

TEST_F(PcJoin, MixedWindowsLabelTheirExecutions) {
  joiner_.add_window(kProcess, window(GPUPROF_WINDOW_OPEN, 1, 1'000'000, 2));
  launched(1, 11, exec(1, 9, 1000));  // starts at 1,001,000
  joiner_.add_window(kProcess, window(GPUPROF_WINDOW_CLOSE, 1, 1'002'500, 2));
  launched(2, 11, exec(2, 9, 1000));
  launched(3, 11, exec(3, 9, 1000));
  joiner_.add_ring_loss(kProcess, GPUPROF_PROBE_WINDOW, 1, 0);
  launched(4, 11, exec(4, 9, 1000));
  const JoinResult result = finish();
  const auto by_state =
      sum_by(result, [](const Row& row) { return std::string(serialized_name(row.serialized)); });
  EXPECT_EQ(by_state.at("true").executions, 2u);
  EXPECT_EQ(by_state.at("false").executions, 1u);
  EXPECT_EQ(by_state.at("unknown").executions, 1u);
}

}  // namespace
}  // namespace gpuprof::join

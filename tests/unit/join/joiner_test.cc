// SPDX-License-Identifier: Apache-2.0
#include "daemon/join/joiner.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "daemon/join/execution_key.h"
#include "tests/unit/join/records.h"

namespace gpuprof::join {
namespace {

using namespace testing;

TEST(Joiner, LaunchBeforeExecutionIsExact) {
  Joiner joiner;
  joiner.add_launch(kProcess, launch(5), 3, 101);
  add(joiner, exec(5, 9, 1234));
  const JoinResult result = joiner.finish_window();
  ASSERT_EQ(result.rows.size(), 1u);
  const Row& row = result.rows[0];
  EXPECT_EQ(row.match, Match::kExact);
  EXPECT_EQ(row.stack, 3u);
  EXPECT_EQ(row.tid, 101u);
  EXPECT_EQ(row.executions, 1u);
  EXPECT_EQ(row.time_ns, 1234u);
  EXPECT_EQ(row.name_id, 9u);
  EXPECT_EQ(row.context_id, 1u);
  EXPECT_EQ(row.stream_id, 7u);
  EXPECT_EQ(result.processes[row.process].process, kProcess);
  EXPECT_EQ(result.processes[0].window.check(), "");
  EXPECT_EQ(result.processes[0].window.exact, 1u);
}

TEST(Joiner, ExecutionBeforeItsLaunchIsExactWithinTheGrace) {
  Joiner joiner;
  joiner.advance(kSecond);
  add(joiner, exec(5, 9, 100));
  joiner.advance(kSecond + JoinerLimits{}.grace_ns - 1);
  joiner.add_launch(kProcess, launch(5), 3, 101);
  EXPECT_EQ(by_match(joiner.finish_window()), (std::map<Match, Sum>{{Match::kExact, {1, 100}}}));
}

TEST(Joiner, ExecutionBeforeItsLaunchIsNotJoinedAfterTheGrace) {
  Joiner joiner;
  joiner.advance(kSecond);
  add(joiner, exec(5, 9, 100));
  joiner.advance(kSecond + JoinerLimits{}.grace_ns);
  joiner.add_launch(kProcess, launch(5), 3, 101);
  const JoinResult result = joiner.finish_window();
  EXPECT_EQ(by_reason(result), (std::map<Unmatched, Sum>{{Unmatched::kNoSample, {1, 100}}}));
}

TEST(Joiner, EveryOrderOfLaunchesAndExecutionsGivesTheSame) {
  // Three launches and three executions: all 720 orders.
  std::vector<int> order{0, 1, 2, 3, 4, 5};
  do {
    Joiner joiner;
    for (const int step : order) {
      const auto id = static_cast<uint32_t>(step % 3 + 1);
      if (step < 3) joiner.add_launch(kProcess, launch(id), id * 10, id);
      if (step >= 3) add(joiner, exec(id, 9, id * 100));
    }
    const auto sums = by_stack(joiner.finish_window());
    ASSERT_EQ(sums, (std::map<StackId, Sum>{{10, {1, 100}}, {20, {1, 200}}, {30, {1, 300}}}));
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(Joiner, GraphLaunchJoinsEveryNodeAndOutlivesThem) {
  Joiner joiner;
  joiner.add_launch(kProcess, launch(5, 1.0, 1, GPUPROF_KIND_GRAPH), 3, 1);
  for (uint32_t node = 0; node < 10; ++node) {
    joiner.advance(kSecond * (1 + 60 * node));  // a minute between nodes: still there
    gpuprof_exec_v1 record = exec(5, node % 2 ? 8 : 9, 100);
    record.graph_id = 77;
    record.graph_node = node;
    if (node == 9) record.kind = GPUPROF_KIND_MEMCPY;
    add(joiner, record);
  }
  const JoinResult result = joiner.finish_window();
  EXPECT_EQ(by_match(result), (std::map<Match, Sum>{{Match::kExact, {10, 1000}}}));
  EXPECT_EQ(result.rows.size(), 3u);  // two kernels and a copy
  for (const Row& row : result.rows) EXPECT_EQ(row.graph_id, 77u);
}

TEST(Joiner, EpochTellsAWrappedCorrelationApart) {
  Joiner joiner;
  joiner.add_launch(kProcess, launch(5, 1.0, 1), 10, 1);
  joiner.add_launch(kProcess, launch(5, 1.0, 2), 20, 1);
  add(joiner, exec(5, 9, 100, 2));
  add(joiner, exec(5, 9, 300, 1));
  add(joiner, exec(5, 9, 500, 3));
  const JoinResult result = joiner.finish_window();
  const auto exact = sum_by(result, [](const Row& row) { return std::pair(row.match, row.stack); });
  EXPECT_EQ(exact.at({Match::kExact, 10}), (Sum{1, 300}));
  EXPECT_EQ(exact.at({Match::kExact, 20}), (Sum{1, 100}));
}

TEST(Joiner, ProcessesDoNotShareLaunchesOrWeights) {
  const ProcessId reused{kProcess.pid, kProcess.start_ticks + 1};  // the same number, later
  Joiner joiner;
  joiner.add_launch(kProcess, launch(5), 10, 1);
  add(joiner, exec(5, 9, 100), reused);
  const JoinResult result = joiner.finish_window();
  EXPECT_EQ(by_reason(result), (std::map<Unmatched, Sum>{{Unmatched::kNoSample, {1, 100}}}));
  ASSERT_EQ(result.rows.size(), 1u);
  EXPECT_EQ(result.processes[result.rows[0].process].process, reused);
}

TEST(Joiner, UnsampledExecutionsFollowResidualWeights) {
  // ADR 0001: A's 1,000 launches all drawn at p = 1, then B's 100,000 at p = 0.01.
  Joiner joiner;
  uint32_t id = 0;
  for (int i = 0; i < 1000; ++i) {
    joiner.add_launch(kProcess, launch(++id), 1, 1);
    add(joiner, exec(id, 9, 10));
  }
  for (int i = 0; i < 100'000; ++i) {
    ++id;
    if (i % 100 == 0) joiner.add_launch(kProcess, launch(id, 100.0), 2, 1);
    add(joiner, exec(id, 9, 10));
  }
  const auto sums = by_stack(joiner.finish_window());
  EXPECT_EQ(sums, (std::map<StackId, Sum>{{1, {1000, 10'000}}, {2, {100'000, 1'000'000}}}));
}

TEST(Joiner, WithoutResidualWeightsTheTotalOnesSpread) {
  // p was 1 and the launch records of four executions were lost.
  Joiner joiner;
  for (uint32_t id = 1; id <= 4; ++id) {
    joiner.add_launch(kProcess, launch(id), id <= 3 ? 1 : 2, 1);
    add(joiner, exec(id, 9, 10));
  }
  for (uint32_t id = 5; id <= 8; ++id) add(joiner, exec(id, 9, 10));
  const JoinResult result = joiner.finish_window();
  EXPECT_EQ(by_stack(result), (std::map<StackId, Sum>{{1, {6, 60}}, {2, {2, 20}}}));
  EXPECT_EQ(by_match(result).at(Match::kSampled), (Sum{4, 40}));
}

TEST(Joiner, NeverExecutedLaunchesHaveNoWeight) {
  Joiner joiner;
  joiner.add_launch(kProcess, launch(1, 1000.0), 1, 1);  // captured into a graph
  joiner.add_launch(kProcess, launch(2, 2.0), 2, 1);
  add(joiner, exec(2, 9, 10));
  for (uint32_t id = 3; id < 13; ++id) add(joiner, exec(id, 9, 10));
  EXPECT_EQ(by_stack(joiner.finish_window()), (std::map<StackId, Sum>{{2, {11, 110}}}));
}

TEST(Joiner, GraphIsSpreadByGraphNotByKernel) {
  Joiner joiner;
  const auto node = [&](uint32_t correlation, uint64_t name, uint32_t graph) {
    gpuprof_exec_v1 record = exec(correlation, name, 10);
    record.graph_id = graph;
    record.graph_node = name;
    add(joiner, record);
  };
  joiner.add_launch(kProcess, launch(1, 2.0, 1, GPUPROF_KIND_GRAPH), 1, 1);
  node(1, 9, 77);  // of the sampled launch only kernel 9 came back so far
  node(2, 9, 77);
  node(2, 8, 77);               // another launch of graph 77, not sampled
  node(3, 9, 78);               // another graph
  add(joiner, exec(4, 9, 10));  // the same kernel outside graphs
  const JoinResult result = joiner.finish_window();
  EXPECT_EQ(by_match(result).at(Match::kSampled), (Sum{2, 20}));
  const auto unmatched =
      sum_by(result, [](const Row& row) { return std::pair(row.match, row.graph_id); });
  EXPECT_EQ(unmatched.at({Match::kUnmatched, 78}), (Sum{1, 10}));
  EXPECT_EQ(unmatched.at({Match::kUnmatched, 0}), (Sum{1, 10}));
}

TEST(Joiner, GraphWeightCountsOnceForAllItsNodes) {
  Joiner joiner;
  // Stack 1 launches a graph of 10 nodes, stack 2 another run of the same graph: equal weights.
  for (uint32_t id = 1; id <= 2; ++id) {
    joiner.add_launch(kProcess, launch(id, 3.0, 1, GPUPROF_KIND_GRAPH), id, 1);
  }
  uint64_t node = 0;
  for (uint32_t id = 1; id <= 4; ++id) {
    for (int n = 0; n < (id == 1 ? 10 : 1); ++n) {
      gpuprof_exec_v1 record = exec(id, 9, 100);
      record.graph_id = 77;
      record.graph_node = ++node;
      add(joiner, record);
    }
  }
  const auto sums = sum_by(joiner.finish_window(),
                           [](const Row& row) { return std::pair(row.match, row.stack); });
  EXPECT_EQ(sums.at({Match::kSampled, 1}).executions, 1u);
  EXPECT_EQ(sums.at({Match::kSampled, 2}).executions, 1u);
  // Time follows the sampled launches' own: 1,000 ns against 100.
  EXPECT_EQ(sums.at({Match::kSampled, 1}).time_ns, 182u);
  EXPECT_EQ(sums.at({Match::kSampled, 2}).time_ns, 18u);
}

TEST(Joiner, BeforeArmAndDeviceLaunchedAreNeverSpread) {
  Joiner joiner;
  joiner.add_launch(kProcess, launch(1, 10.0), 1, 1);
  add(joiner, exec(1, 9, 10));
  gpuprof_exec_v1 record = exec(2, 9, 20);
  record.flags = GPUPROF_EXEC_BEFORE_ARM;
  add(joiner, record);
  record = exec(1, 9, 40);  // carries its parent's correlation
  record.flags = GPUPROF_EXEC_DEVICE_LAUNCHED;
  add(joiner, record);
  const JoinResult result = joiner.finish_window();
  EXPECT_EQ(by_reason(result).at(Unmatched::kBeforeArm), (Sum{1, 20}));
  EXPECT_EQ(by_reason(result).at(Unmatched::kDeviceLaunched), (Sum{1, 40}));
  EXPECT_EQ(result.processes[0].window.check(), "");
}

TEST(Joiner, LostStackIsSpreadOrToldAsLost) {
  Joiner joiner;
  joiner.add_launch(kProcess, launch(1, 4.0), kNoStack, 1);
  add(joiner, exec(1, 9, 10));
  JoinResult result = joiner.finish_window();
  EXPECT_EQ(by_reason(result), (std::map<Unmatched, Sum>{{Unmatched::kLaunchLost, {1, 10}}}));

  joiner.add_launch(kProcess, launch(2, 4.0), kNoStack, 1);
  joiner.add_launch(kProcess, launch(3, 4.0), 6, 1);
  add(joiner, exec(2, 9, 10));
  add(joiner, exec(3, 9, 10));
  result = joiner.finish_window();
  EXPECT_EQ(by_stack(result), (std::map<StackId, Sum>{{6, {2, 20}}}));
}

TEST(Joiner, LostLaunchRecordsExplainWhereEveryLaunchIsTaken) {
  Joiner joiner;
  joiner.add_ring_loss(kProcess, GPUPROF_PROBE_LAUNCH, 3, 0);
  add(joiner, exec(1, 9, 10));
  EXPECT_EQ(by_reason(joiner.finish_window()),
            (std::map<Unmatched, Sum>{{Unmatched::kLaunchLost, {1, 10}}}));
}

TEST(Joiner, ExecutionBelongsToTheWindowThatReceivedIt) {
  Joiner joiner;
  joiner.add_launch(kProcess, launch(1, 2.0), 1, 1);
  joiner.add_launch(kProcess, launch(2, 2.0), 2, 1);
  add(joiner, exec(1, 9, 10));
  EXPECT_EQ(by_stack(joiner.finish_window()), (std::map<StackId, Sum>{{1, {1, 10}}}));
  add(joiner, exec(2, 9, 20));  // launched in the window before
  add(joiner, exec(3, 9, 40));
  const JoinResult second = joiner.finish_window();
  EXPECT_EQ(by_stack(second), (std::map<StackId, Sum>{{2, {2, 60}}}));
  EXPECT_EQ(second.processes[0].window.received, 2u);
  EXPECT_EQ(second.processes[0].lifetime.received, 3u);
  EXPECT_EQ(second.processes[0].lifetime.check(), "");
  EXPECT_TRUE(joiner.finish_window().rows.empty());
}

TEST(Joiner, GraphLaunchAcrossWindowsCountsItsWeightInEach) {
  Joiner joiner;
  joiner.add_launch(kProcess, launch(1, 5.0, 1, GPUPROF_KIND_GRAPH), 4, 1);
  for (uint64_t window = 0; window < 2; ++window) {
    gpuprof_exec_v1 record = exec(1, 9, 10);
    record.graph_id = 77;
    record.graph_node = window;
    add(joiner, record);
    record.correlation = 2;
    add(joiner, record);
    EXPECT_EQ(by_stack(joiner.finish_window()), (std::map<StackId, Sum>{{4, {2, 20}}})) << window;
  }
}

TEST(Joiner, RepeatedExecutionIsCountedNotJoined) {
  Joiner joiner;
  joiner.add_launch(kProcess, launch(1), 1, 1);
  add(joiner, exec(1, 9, 10));
  add(joiner, exec(2, 9, 10));
  add(joiner, exec(1, 9, 10));
  // A second attach to the same probe: whole batches twice.
  const std::vector<gpuprof_exec_v1> batch{exec(3, 9, 10), exec(4, 9, 10), exec(5, 9, 10)};
  joiner.add_execs(kProcess, batch);
  joiner.add_execs(kProcess, batch);
  const JoinResult result = joiner.finish_window();
  EXPECT_EQ(result.processes[0].window.duplicates, 4u);
  EXPECT_EQ(result.processes[0].window.received, 5u);
  EXPECT_EQ(result.processes[0].window.check(), "");
  EXPECT_EQ(by_stack(result), (std::map<StackId, Sum>{{1, {5, 50}}}));
}

// Alike in 32 bits of their fingerprints: 400,000 nodes have some twenty such pairs.
TEST(Joiner, NodesThatHashAlikeAreNoDuplicates) {
  std::map<uint32_t, uint64_t> seen;
  uint64_t pairs = 0;
  const auto node = [](uint64_t index) {
    gpuprof_exec_v1 record = exec(1, 9, 10);
    record.graph_id = 77;
    record.graph_node = index;
    return record;
  };
  for (uint64_t index = 1; index <= 400'000; ++index) {
    const auto [at, is_new] = seen.emplace(static_cast<uint32_t>(fingerprint(node(index))), index);
    if (is_new) continue;
    ++pairs;
    Joiner joiner;
    joiner.add_launch(kProcess, launch(1, 1.0, 1, GPUPROF_KIND_GRAPH), 1, 1);
    add(joiner, node(at->second));
    add(joiner, node(index));
    ASSERT_EQ(joiner.finish_window().processes[0].window.duplicates, 0u);
  }
  EXPECT_GT(pairs, 0u);
}

TEST(Joiner, RepeatedLaunchKeepsTheFirst) {
  Joiner joiner;
  joiner.add_launch(kProcess, launch(1), 1, 1);
  joiner.add_launch(kProcess, launch(1), 2, 1);
  add(joiner, exec(1, 9, 10));
  EXPECT_EQ(by_stack(joiner.finish_window()), (std::map<StackId, Sum>{{1, {1, 10}}}));
  EXPECT_EQ(joiner.stats().launches_duplicate, 1u);
}

// As if a CUPTI gave all launches one id: the first one's call path must not get all kernels.
TEST(Joiner, ASecondKernelOfALaunchIsNotExact) {
  Joiner joiner;
  joiner.add_launch(kProcess, launch(1), 1, 1);
  joiner.add_launch(kProcess, launch(2), 2, 1);
  add(joiner, exec(2, 8, 50));
  add(joiner, exec(1, 9, 10));
  gpuprof_exec_v1 other = exec(1, 8, 500);
  other.start_ns += 5000;
  other.end_ns += 5000;
  add(joiner, other);
  const JoinResult result = joiner.finish_window();
  EXPECT_EQ(result.processes[0].window.exact, 2u);
  EXPECT_EQ(result.processes[0].window.check(), "");
  EXPECT_EQ(by_stack(result), (std::map<StackId, Sum>{{1, {1, 10}}, {2, {2, 550}}}));
  EXPECT_EQ(joiner.stats().executions_beside_another, 1u);
}

TEST(Joiner, AKernelOfAnotherNameIsNotExact) {
  Joiner joiner;
  gpuprof_launch_v1 named = launch(1);
  named.name_id = 8;
  joiner.add_launch(kProcess, named, 1, 1);
  add(joiner, exec(1, 9, 10));
  add(joiner, exec(1, 8, 50));
  const JoinResult result = joiner.finish_window();
  EXPECT_EQ(result.processes[0].window.check(), "");
  EXPECT_EQ(by_match(result),
            (std::map<Match, Sum>{{Match::kExact, {1, 50}}, {Match::kUnmatched, {1, 10}}}));
  EXPECT_EQ(joiner.stats().executions_of_another, 1u);
}

TEST(Joiner, AGraphsLaunchHasOnlyKernelsOfGraphs) {
  Joiner joiner;
  gpuprof_launch_v1 graph = launch(1);
  graph.kind = GPUPROF_KIND_GRAPH;
  joiner.add_launch(kProcess, graph, 1, 1);
  gpuprof_exec_v1 node = exec(1, 9, 10);
  node.graph_id = 3;
  add(joiner, node);
  add(joiner, exec(1, 9, 50));
  const JoinResult result = joiner.finish_window();
  EXPECT_EQ(by_match(result),
            (std::map<Match, Sum>{{Match::kExact, {1, 10}}, {Match::kUnmatched, {1, 50}}}));
  EXPECT_EQ(joiner.stats().executions_of_another, 1u);
}

TEST(Joiner, AccountingHoldsInTheMiddleOfAWindow) {
  Joiner joiner;
  joiner.add_launch(kProcess, launch(1), 1, 1);
  add(joiner, exec(1, 9, 10));
  add(joiner, exec(2, 9, 20));
  const Accounting* accounting = joiner.window_accounting(kProcess);
  ASSERT_NE(accounting, nullptr);
  EXPECT_EQ(accounting->check(), "");
  EXPECT_EQ(accounting->exact, 1u);
  EXPECT_EQ(accounting->pending, 1u);
  EXPECT_EQ(accounting->pending_ns, 20u);
  EXPECT_EQ(joiner.window_accounting({1, 1}), nullptr);
}

TEST(Joiner, ShimAndRingLossesCloseTheSecondIdentity) {
  Joiner joiner;
  add(joiner, exec(1, 9, 10));
  joiner.add_ring_loss(kProcess, GPUPROF_PROBE_EXEC, 5, 0);
  joiner.add_ring_loss(kProcess, GPUPROF_PROBE_NAME, 50, 0);  // no executions
  joiner.set_shim_loss(kProcess, GPUPROF_DROP_CUPTI, 2);
  joiner.set_shim_loss(kProcess, GPUPROF_DROP_STACK_BUDGET, 9);  // no executions
  joiner.finish_window();
  joiner.set_shim_loss(kProcess, GPUPROF_DROP_CUPTI, 3);  // a running total
  joiner.set_emitted(kProcess, 6);
  JoinResult result = joiner.finish_window();
  const Accounting& lifetime = result.processes[0].lifetime;
  EXPECT_EQ(lifetime.check(), "");
  EXPECT_EQ(lifetime.produced(), 9u);
  EXPECT_EQ(lifetime.lost_shim[GPUPROF_DROP_CUPTI], 3u);
  EXPECT_EQ(result.processes[0].window.lost_shim[GPUPROF_DROP_CUPTI], 1u);
  joiner.set_emitted(kProcess, 7);
  result = joiner.finish_window();
  EXPECT_NE(result.processes[0].lifetime.check().find("produced 10"), std::string::npos);
}

TEST(Joiner, RemovedProcessIsForgottenAfterItsLastWindow) {
  Joiner joiner;
  joiner.add_launch(kProcess, launch(1), 1, 1);
  joiner.add_launch(kProcess, launch(2), 2, 1);
  add(joiner, exec(1, 9, 10));
  joiner.remove_process(kProcess);
  EXPECT_EQ(joiner.finish_window().rows.size(), 1u);
  EXPECT_EQ(joiner.stats().launches_evicted, 1u);
  EXPECT_EQ(joiner.stats().launches_retired, 1u);
  EXPECT_TRUE(joiner.live_stacks().empty());
  EXPECT_TRUE(joiner.finish_window().processes.empty());
}

TEST(Joiner, LiveStacksAreThoseOfCachedLaunches) {
  Joiner joiner;
  joiner.add_launch(kProcess, launch(1), 8, 1);
  joiner.add_launch(kProcess, launch(2), 3, 1);
  joiner.add_launch(kProcess, launch(3), 8, 1);
  EXPECT_EQ(joiner.live_stacks(), (std::vector<StackId>{3, 8}));
}

}  // namespace
}  // namespace gpuprof::join

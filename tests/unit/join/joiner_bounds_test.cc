// SPDX-License-Identifier: Apache-2.0
//
// A hostile producer: every field different in every record.
#include <gtest/gtest.h>

#include <random>

#include "tests/unit/join/records.h"

namespace gpuprof::join {
namespace {

using namespace testing;

TEST(JoinerBounds, UniqueKernelsFoldIntoOther) {
  JoinerLimits limits;
  limits.max_classes_per_process = 100;
  Joiner joiner(limits);
  for (uint32_t id = 1; id <= 10'000; ++id) {
    gpuprof_exec_v1 record = exec(id, id, 10);
    record.stream_id = id;
    record.context_id = id;
    record.graph_id = id;
    add(joiner, record);
  }
  const JoinResult result = joiner.finish_window();
  EXPECT_LE(result.rows.size(), 126u);
  EXPECT_EQ(result.stats.executions_folded, 10'000u - 125);
  EXPECT_EQ(result.stats.streams_folded, 25u);
  Sum other;
  for (const Row& row : result.rows) {
    if (row.kind == GPUPROF_KIND_INVALID) other = {row.executions, row.time_ns};
  }
  EXPECT_EQ(other, (Sum{10'000 - 125, (10'000 - 125) * 10}));
  EXPECT_EQ(result.processes[0].window.check(), "");
}

TEST(JoinerBounds, UniqueStreamsFoldButKeepTheirKernel) {
  JoinerLimits limits;
  limits.max_classes_per_process = 10;
  Joiner joiner(limits);
  for (uint32_t id = 1; id <= 1000; ++id) {
    gpuprof_exec_v1 record = exec(id, 9, 10);
    record.stream_id = id;
    add(joiner, record);
  }
  const JoinResult result = joiner.finish_window();
  EXPECT_EQ(result.rows.size(), 11u);
  EXPECT_EQ(result.stats.executions_folded, 0u);
  EXPECT_EQ(result.stats.streams_folded, 990u);
  for (const Row& row : result.rows) EXPECT_EQ(row.name_id, 9u);
}

TEST(JoinerBounds, OneProcessDoesNotFoldAnother) {
  JoinerLimits limits;
  limits.max_classes_per_process = 100;
  limits.max_classes = 1000;
  Joiner joiner(limits);
  for (uint32_t id = 1; id <= 10'000; ++id) add(joiner, exec(id, id, 10));
  const ProcessId other{200, 1};
  for (uint32_t id = 1; id <= 90; ++id) add(joiner, exec(id, id, 10), other);
  size_t rows = 0;
  const JoinResult result = joiner.finish_window();
  for (const Row& row : result.rows) {
    if (result.processes[row.process].process != other) continue;
    ++rows;
    EXPECT_NE(row.kind, GPUPROF_KIND_INVALID);
  }
  EXPECT_EQ(rows, 90u);
}

TEST(JoinerBounds, ManyHostileProcessesLeaveEveryOtherItsFirstKernels) {
  JoinerLimits limits;
  limits.max_classes_per_process = 500;
  limits.max_classes = 1000;
  limits.reserved_classes_per_process = 50;
  Joiner joiner(limits);
  for (uint32_t hostile = 0; hostile < 10; ++hostile) {
    for (uint32_t id = 1; id <= 1000; ++id) add(joiner, exec(id, id, 10), {1000 + hostile, 1});
  }
  const ProcessId other{200, 1};
  for (uint32_t id = 1; id <= 60; ++id) add(joiner, exec(id, id, 10), other);
  std::map<bool, size_t> kernels;  // by whether they are the other's
  const JoinResult result = joiner.finish_window();
  for (const Row& row : result.rows) {
    if (row.kind == GPUPROF_KIND_KERNEL) ++kernels[result.processes[row.process].process == other];
  }
  EXPECT_EQ(kernels[true], 50u);
  EXPECT_LE(kernels[false], 2000u);
}

TEST(JoinerBounds, LaunchesThatNeverExecuteStayBounded) {
  JoinerLimits limits;
  limits.max_launches_per_process = 1000;
  Joiner joiner(limits);
  for (uint32_t id = 1; id <= 100'000; ++id) joiner.add_launch(kProcess, launch(id), id, 1);
  EXPECT_LE(joiner.live_stacks().size(), 1000u);
  EXPECT_EQ(joiner.stats().launches_evicted, 100'000 - joiner.live_stacks().size());
  EXPECT_EQ(joiner.live_stacks().back(), 100'000u);  // the newest stay
}

TEST(JoinerBounds, LaunchLimitOverAllProcessesTakesFromTheLargest) {
  JoinerLimits limits;
  limits.max_launches = 1000;
  Joiner joiner(limits);
  const ProcessId small{200, 1};
  joiner.add_launch(small, launch(1), 1'000'000, 1);
  for (uint32_t id = 1; id <= 10'000; ++id) joiner.add_launch(kProcess, launch(id), id, 1);
  EXPECT_LE(joiner.live_stacks().size(), 1000u);
  EXPECT_EQ(joiner.live_stacks().back(), 1'000'000u);
}

TEST(JoinerBounds, OldLaunchesAreForgottenAndCounted) {
  Joiner joiner;
  joiner.advance(kSecond);
  joiner.add_launch(kProcess, launch(1), 1, 1);                            // never executes
  joiner.add_launch(kProcess, launch(2), 2, 1);                            // executes
  joiner.add_launch(kProcess, launch(3, 1, 1, GPUPROF_KIND_GRAPH), 3, 1);  // executes
  add(joiner, exec(2, 9, 10));
  gpuprof_exec_v1 node = exec(3, 9, 10);
  node.graph_id = 1;
  add(joiner, node);
  joiner.advance(kSecond * 12);
  EXPECT_EQ(joiner.live_stacks(), (std::vector<StackId>{1, 3}));
  EXPECT_EQ(joiner.stats().launches_retired, 1u);
  node.end_ns += 1;
  add(joiner, node);  // used again: ten more minutes
  joiner.advance(kSecond * 605);
  EXPECT_EQ(joiner.live_stacks(), (std::vector<StackId>{3}));
  EXPECT_EQ(joiner.stats().launches_never_executed, 1u);
  joiner.advance(kSecond * 700);
  EXPECT_TRUE(joiner.live_stacks().empty());
}

TEST(JoinerBounds, ThousandsOfExitedProcessesAreKept) {
  Joiner joiner;
  constexpr uint32_t kCount = 5000;
  for (uint32_t i = 0; i < kCount; ++i) {
    const ProcessId id{1000 + i, 1};
    joiner.add_launch(id, launch(1), 1 + i, 1);
    add(joiner, exec(1, 9, 10), id);
    joiner.remove_process(id);
    joiner.advance(kSecond * (i + 1));
  }
  EXPECT_LE(joiner.live_stacks().size(), 3u) << "an exited process's launches are forgotten";
  const JoinResult result = joiner.finish_window();
  EXPECT_EQ(result.processes.size(), kCount);
  EXPECT_EQ(result.stats.processes_refused, 0u);
  EXPECT_EQ(by_match(result).at(Match::kExact), (Sum{kCount, kCount * 10}));
  EXPECT_TRUE(joiner.live_stacks().empty());
}

TEST(JoinerBounds, FullWaitingLineResolvesTheOldest) {
  JoinerLimits limits;
  limits.max_waiting = 100;
  Joiner joiner(limits);
  for (uint32_t id = 1; id <= 150; ++id) add(joiner, exec(id, 9, 10));
  EXPECT_EQ(joiner.stats().executions_resolved_early, 50u);
  for (uint32_t id = 1; id <= 150; ++id) joiner.add_launch(kProcess, launch(id), 1, 1);
  const JoinResult result = joiner.finish_window();
  EXPECT_EQ(by_match(result).at(Match::kExact), (Sum{100, 1000}));
  EXPECT_EQ(result.processes[0].window.check(), "");
}

TEST(JoinerBounds, TooManyExactRowsAreSpread) {
  JoinerLimits limits;
  limits.max_exact_rows_per_process = 10;
  Joiner joiner(limits);
  for (uint32_t id = 1; id <= 100; ++id) {
    joiner.add_launch(kProcess, launch(id), id, 1);
    add(joiner, exec(id, 9, 10));
  }
  const JoinResult result = joiner.finish_window();
  EXPECT_EQ(result.stats.rows_folded, 90u);
  EXPECT_EQ(by_match(result).at(Match::kExact), (Sum{10, 100}));
  EXPECT_EQ(by_match(result).at(Match::kSampled), (Sum{90, 900}));
}

TEST(JoinerBounds, SpreadRowsStayInTheirBudget) {
  JoinerLimits limits;
  limits.max_spread_rows = 1000;
  Joiner joiner(limits);
  uint32_t id = 0;
  // 500 stacks of one kernel, unsampled executions on 100 streams: 50,000 pairs.
  for (uint32_t stack = 1; stack <= 500; ++stack) {
    joiner.add_launch(kProcess, launch(++id, 10.0), stack, 1);
    add(joiner, exec(id, 9, 1000));
  }
  for (uint32_t n = 0; n < 10'000; ++n) {
    gpuprof_exec_v1 record = exec(++id, 9, 1000);
    record.stream_id = n % 100;
    add(joiner, record);
  }
  const JoinResult result = joiner.finish_window();
  EXPECT_LE(result.rows.size(), 500u + 1000 + 101);
  EXPECT_GT(result.stats.stacks_trimmed, 0u);
  EXPECT_EQ(by_match(result).at(Match::kSampled), (Sum{10'000, 10'000'000}));
}

TEST(JoinerBounds, ProcessesBeyondTheLimitAreEvictedAndCounted) {
  JoinerLimits limits;
  limits.max_processes = 2;
  Joiner joiner(limits);
  for (uint32_t pid = 1; pid <= 5; ++pid) {
    add(joiner, exec(1, 9, 10), {pid, 1});
    joiner.add_launch({pid, 1}, launch(1), 1, 1);
  }
  const JoinResult result = joiner.finish_window();
  ASSERT_EQ(result.processes.size(), 3u);
  EXPECT_EQ(result.processes[2].process, ProcessId{});
  EXPECT_EQ(result.processes[2].window.evicted, 3u);
  EXPECT_EQ(result.processes[2].window.evicted_ns, 30u);
  EXPECT_EQ(result.processes[2].window.check(), "");
  EXPECT_EQ(result.stats.processes_refused, 6u);
}

TEST(JoinerBounds, GarbageRecordsKeepTheIdentities) {
  std::mt19937_64 random(20261129);
  Joiner joiner;
  for (int i = 0; i < 50'000; ++i) {
    gpuprof_exec_v1 record{};
    auto* words = reinterpret_cast<uint64_t*>(&record);
    for (size_t w = 0; w < sizeof(record) / 8; ++w) words[w] = random();
    if (i % 3 == 0) record.kind %= 5;
    add(joiner, record);
    gpuprof_launch_v1 one{};
    words = reinterpret_cast<uint64_t*>(&one);
    for (size_t w = 0; w < sizeof(one) / 8; ++w) words[w] = random();
    if (i % 2 == 0) {
      one.correlation = record.correlation;
      one.epoch = record.epoch;
    }
    joiner.add_launch(kProcess, one, static_cast<StackId>(random() % 5), 1);
    if (i % 100 == 0) joiner.advance(random());
  }
  const JoinResult result = joiner.finish_window();
  EXPECT_EQ(result.processes[0].window.check(), "");
  EXPECT_LE(result.rows.size(), 200'000u);
}

}  // namespace
}  // namespace gpuprof::join

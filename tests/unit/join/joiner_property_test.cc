// SPDX-License-Identifier: Apache-2.0
//
// Whatever comes, in whatever order: nothing is lost, nothing is made up.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/unit/join/records.h"

namespace gpuprof::join {
namespace {

using namespace testing;

struct Event {
  bool is_launch = false;
  ProcessId process;
  gpuprof_launch_v1 launch{};
  StackId stack = kNoStack;
  gpuprof_exec_v1 exec{};
};

// A random program: kernels, copies and graphs of three processes, some launches sampled, some
// records lost; executions come before or after their launches, in batches.
std::vector<Event> random_events(std::mt19937_64& random, std::map<ProcessId, Sum>& truth) {
  std::vector<Event> events;
  const double weight_of[] = {1.0, 2.0, 17.5, 1000.0};
  const double max_skew = static_cast<double>(random() % 200);
  std::vector<std::pair<double, Event>> placed;
  for (uint32_t id = 1; id <= 3000; ++id) {
    const ProcessId process{static_cast<uint32_t>(100 + random() % 3), 7};
    const bool is_graph = random() % 10 == 0;
    const double at = id;
    if (random() % 4 == 0) {
      Event event;
      event.is_launch = true;
      event.process = process;
      event.launch = launch(id, weight_of[random() % 4], 1 + id / 1500,
                            is_graph ? GPUPROF_KIND_GRAPH : GPUPROF_KIND_KERNEL);
      event.stack = static_cast<StackId>(random() % 20);  // 0: lost
      placed.emplace_back(at + static_cast<double>(random() % 100) / 100 * max_skew, event);
    }
    const uint64_t nodes = random() % 20 == 0 ? 0 : is_graph ? 1 + random() % 12 : 1;
    for (uint64_t node = 0; node < nodes; ++node) {
      Event event;
      event.process = process;
      event.exec = exec(id, 1 + random() % 8, random() % 5000, 1 + id / 1500);
      event.exec.kind = 1 + random() % 3;
      event.exec.copy_kind = static_cast<uint32_t>(random() % 12);
      event.exec.stream_id = static_cast<uint32_t>(random() % 4);
      if (is_graph) event.exec.graph_id = 1 + id % 3;
      if (is_graph) event.exec.graph_node = node + 1;
      if (random() % 50 == 0) event.exec.flags = 1 + random() % 3;
      Sum& sum = truth[process];
      ++sum.executions;
      sum.time_ns += event.exec.end_ns - event.exec.start_ns;
      placed.emplace_back(at + static_cast<double>(random() % 100) / 100 * max_skew, event);
    }
  }
  std::stable_sort(placed.begin(), placed.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [at, event] : placed) events.push_back(event);
  return events;
}

JoinerLimits random_limits(std::mt19937_64& random) {
  JoinerLimits limits;
  if (random() % 2 == 0) return limits;
  limits.grace_ns = random() % 3000;
  limits.max_waiting = static_cast<uint32_t>(random() % 300);
  limits.launch_age_ns = 1 + random() % 10'000;
  limits.executed_launch_age_ns = 1 + random() % 1000;
  limits.max_launches_per_process = static_cast<uint32_t>(random() % 200);
  limits.max_launches = static_cast<uint32_t>(random() % 300);
  limits.max_processes = static_cast<uint32_t>(1 + random() % 4);
  limits.max_classes_per_process = static_cast<uint32_t>(random() % 60);
  limits.max_classes = static_cast<uint32_t>(random() % 100);
  limits.max_exact_rows_per_process = static_cast<uint32_t>(random() % 100);
  limits.max_exact_rows = static_cast<uint32_t>(random() % 200);
  limits.max_spread_rows = static_cast<uint32_t>(random() % 500);
  return limits;
}

TEST(JoinerProperty, ConservesExecutionsAndTimeUnderAnyLimits) {
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    std::mt19937_64 random(seed);
    std::map<ProcessId, Sum> truth;
    const std::vector<Event> events = random_events(random, truth);
    Joiner joiner(random_limits(random));
    std::map<ProcessId, Sum> joined;
    Sum total_truth;
    for (const auto& [process, sum] : truth) {
      total_truth.executions += sum.executions;
      total_truth.time_ns += sum.time_ns;
    }
    Sum total;
    const auto collect = [&](const JoinResult& result) {
      std::vector<Sum> by_process(result.processes.size());
      for (const Row& row : result.rows) {
        ASSERT_LT(row.process, result.processes.size());
        ASSERT_NE(row.match, Match::kInvalid);
        ASSERT_EQ(row.match == Match::kUnmatched, row.stack == kNoStack);
        by_process[row.process].executions += row.executions;
        by_process[row.process].time_ns += row.time_ns;
      }
      for (size_t i = 0; i < by_process.size(); ++i) {
        const Accounting& window = result.processes[i].window;
        ASSERT_EQ(window.check(), "") << "seed " << seed;
        ASSERT_EQ(window.pending, 0u);
        ASSERT_EQ(window.received - window.evicted, by_process[i].executions) << "seed " << seed;
        ASSERT_EQ(window.received_ns - window.evicted_ns, by_process[i].time_ns) << "seed " << seed;
        ASSERT_EQ(result.processes[i].lifetime.check(), "");
        ASSERT_EQ(window.duplicates, 0u);
        total.executions += window.received;
        total.time_ns += window.received_ns;
      }
    };
    uint64_t now_ns = 1;
    for (const Event& event : events) {
      if (event.is_launch) {
        joiner.add_launch(event.process, event.launch, event.stack, event.stack + 1);
      } else {
        add(joiner, event.exec, event.process);
      }
      joiner.advance(now_ns += random() % 20 == 0 ? 1 + random() % 1'000'000'000 : 10);
      if (random() % 2000 == 0) collect(joiner.finish_window());
      if (::testing::Test::HasFatalFailure()) return;
    }
    collect(joiner.finish_window());
    ASSERT_EQ(total, total_truth) << "seed " << seed;
  }
}

TEST(JoinerProperty, ExactExecutionsAreOnTheirOwnStackAndOthersOnStacksOfTheirKey) {
  for (uint64_t seed = 1000; seed < 1040; ++seed) {
    std::mt19937_64 random(seed);
    std::map<ProcessId, Sum> truth;
    const std::vector<Event> events = random_events(random, truth);
    using Key = std::tuple<ProcessId, uint32_t, uint32_t>;  // process, epoch, correlation
    std::map<Key, StackId> stacks;
    for (const Event& event : events) {
      if (event.is_launch) {
        stacks[{event.process, event.launch.epoch, event.launch.correlation}] = event.stack;
      }
    }
    std::map<std::pair<ProcessId, StackId>, Sum> expected;
    Joiner joiner;
    for (const Event& event : events) {
      if (event.is_launch) {
        joiner.add_launch(event.process, event.launch, event.stack, 1);
        continue;
      }
      add(joiner, event.exec, event.process);
      const auto found = stacks.find({event.process, event.exec.epoch, event.exec.correlation});
      if (found == stacks.end() || found->second == kNoStack || event.exec.flags != 0) continue;
      Sum& sum = expected[{event.process, found->second}];
      ++sum.executions;
      sum.time_ns += event.exec.end_ns - event.exec.start_ns;
    }
    const JoinResult result = joiner.finish_window();
    std::map<std::pair<ProcessId, StackId>, Sum> exact;
    for (const Row& row : result.rows) {
      if (row.match != Match::kExact) continue;
      Sum& sum = exact[{result.processes[row.process].process, row.stack}];
      sum.executions += row.executions;
      sum.time_ns += row.time_ns;
    }
    ASSERT_EQ(exact, expected) << "seed " << seed;
  }
}

}  // namespace
}  // namespace gpuprof::join

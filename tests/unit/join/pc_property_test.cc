// SPDX-License-Identifier: Apache-2.0
//
// Whatever PC samples and windows come, in whatever order and under whatever bounds: every sample
// is in one bucket, no time or execution is made up, and what is called exact is.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "tests/unit/join/fake_frames.h"
#include "tests/unit/join/pc_records.h"

namespace gpuprof::join {
namespace {

using namespace testing;

struct Truth {
  uint64_t executions = 0, time_ns = 0;
  uint64_t records = 0, counts = 0, windows = 0;
};

// A random program of a few processes; its records come somewhat out of order.
class Program {
 public:
  Program(std::mt19937_64& random, FakeFrames& frames) : random_(random) {
    for (uint32_t pid = 100; pid < 103; ++pid) {
      for (uint64_t kernel = 1; kernel <= kKernels; ++kernel)
        frames[ProcessId{pid, 7}].kernels[kernel] = "k" + std::to_string(kernel);
    }
  }

  // Into the joiner, in an order that `skew` bounds, with `between` after each record.
  template <class Between>
  void run(Joiner& joiner, uint32_t steps, double skew, Between between) {
    for (uint32_t id = 1; id <= steps; ++id) step(id, skew);
    std::stable_sort(events_.begin(), events_.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [at, event] : events_) {
      event(joiner);
      between();
    }
    events_.clear();
  }

  static constexpr uint64_t kKernels = 6;
  std::map<ProcessId, Truth> truth;
  // What a correlation's launch is: its stack, 0 where it was not sampled; graphs' are not in it.
  std::map<std::pair<ProcessId, uint32_t>, StackId> stack_of;

 private:
  uint64_t pick(uint64_t n) { return random_() % n; }
  void at(double when, std::function<void(Joiner&)> event) {
    events_.emplace_back(when, std::move(event));
  }

  void step(uint32_t id, double skew) {
    const ProcessId process{static_cast<uint32_t>(100 + pick(3)), 7};
    const auto when = [&] { return id + static_cast<double>(pick(100)) / 100 * skew; };
    const bool is_graph = pick(12) == 0;
    const uint32_t device = static_cast<uint32_t>(pick(2));
    const uint64_t kernel = 1 + pick(kKernels);
    if (pick(3) == 0) {
      const auto stack = static_cast<StackId>(1 + pick(9));
      const gpuprof_launch_v1 record = launch(id, pick(2) == 0 ? 1.0 : 3.5, 1,
                                              is_graph ? GPUPROF_KIND_GRAPH : GPUPROF_KIND_KERNEL);
      at(when(), [=](Joiner& joiner) { joiner.add_launch(process, record, stack, stack); });
      if (!is_graph) stack_of[{process, id}] = stack;
    } else if (!is_graph) {
      stack_of[{process, id}] = kNoStack;
    }
    for (uint64_t node = 0; node < (is_graph ? 1 + pick(4) : 1); ++node) {
      gpuprof_exec_v1 record = exec(id, kernel, pick(5000));
      record.device_id = device;
      record.context_id = device * 2 + static_cast<uint32_t>(pick(10) == 0);
      if (is_graph) record.graph_id = 3;
      if (is_graph) record.graph_node = node + 1;
      Truth& sums = truth[process];
      ++sums.executions;
      sums.time_ns += record.end_ns - record.start_ns;
      at(when(), [=](Joiner& joiner) { add(joiner, record, process); });
    }
    const bool is_serialized = pick(2) == 0;
    for (uint64_t i = 0; i < pick(6); ++i) {
      gpuprof_pc_sample_v1 record =
          pc_sample(pick(20) == 0 ? 77 : kernel, id * 16, static_cast<uint32_t>(pick(50)),
                    static_cast<uint32_t>(pick(8)), is_serialized ? id : 0);
      record.cubin_key = pick(15) == 0 ? 9 : kCubin;
      record.device_id = pick(15) == 0 ? UINT32_MAX : device;
      record.context_id = device * 2;
      Truth& sums = truth[process];
      ++sums.records;
      sums.counts += record.samples;
      at(when(), [=](Joiner& joiner) { add(joiner, record, process); });
    }
    if (pick(8) == 0) {
      gpuprof_window_v1 record =
          window(1 + static_cast<uint32_t>(pick(2)), pick(3), 1'000'000 + uint64_t{id} * 1000,
                 1 + static_cast<uint32_t>(pick(2)), device * 2);
      record.device_id = device;
      ++truth[process].windows;
      at(when(), [=](Joiner& joiner) { joiner.add_window(process, record); });
    }
    if (pick(100) == 0)
      at(when(),
         [=](Joiner& joiner) { joiner.add_ring_loss(process, GPUPROF_PROBE_WINDOW, 1, 0); });
  }

  std::mt19937_64& random_;
  std::vector<std::pair<double, std::function<void(Joiner&)>>> events_;
};

JoinerLimits random_limits(std::mt19937_64& random) {
  JoinerLimits limits;
  if (random() % 2 == 0) return limits;
  limits.grace_ns = random() % 3000;
  limits.pc_grace_ns = random() % 3000;
  limits.max_pc_waiting = static_cast<uint32_t>(random() % 50);
  limits.max_serialized_executions = static_cast<uint32_t>(random() % 100);
  limits.max_processes = static_cast<uint32_t>(1 + random() % 3);
  limits.max_classes_per_process = static_cast<uint32_t>(random() % 60);
  limits.max_exact_rows = static_cast<uint32_t>(random() % 200);
  limits.max_pc_sources_per_process = static_cast<uint32_t>(random() % 50);
  limits.max_pc_sources = static_cast<uint32_t>(random() % 100);
  limits.max_pc_entries_per_process = static_cast<uint32_t>(random() % 200);
  limits.max_pc_entries = static_cast<uint32_t>(random() % 400);
  limits.max_pc_rows = static_cast<uint32_t>(random() % 500);
  return limits;
}

void check_process(const ProcessResult& process) {
  ASSERT_EQ(process.window.check(), "");
  ASSERT_EQ(process.lifetime.check(), "");
  ASSERT_EQ(process.windows.check(), "");
  ASSERT_EQ(process.window.pending, 0u);
  ASSERT_EQ(process.window.pc.pending, 0u);
}

void check_pc_rows(const JoinResult& result) {
  std::vector<Truth> by_row(result.rows.size());
  std::vector<uint64_t> samples(result.processes.size()), stall_samples(result.processes.size());
  uint32_t last = 0;
  for (const PcRow& pc : result.pc_rows) {
    ASSERT_LT(pc.row, result.rows.size());
    ASSERT_GE(pc.row, last);
    last = pc.row;
    const PcFunction& function = result.pc_functions.at(pc.function);
    const Row& row = result.rows[pc.row];
    ASSERT_TRUE(pc.stall == kFolded || pc.stall < result.stalls.size());
    ASSERT_EQ(row.process, function.process);
    ASSERT_NE(function.attrib, PcAttrib::kNone);
    ASSERT_EQ(row.match == Match::kInvalid, function.attrib == PcAttrib::kUnattributed);
    if (function.attrib != PcAttrib::kExact) {
      ASSERT_EQ(row.name_id, function.function_name_id);
      if (function.attrib != PcAttrib::kKernelMultidevice &&
          function.attrib != PcAttrib::kGraphRefused) {
        ASSERT_EQ(row.device_id, function.device_id);
      }
    }
    by_row[pc.row].executions += pc.executions;
    by_row[pc.row].time_ns += pc.time_ns;
    samples[row.process] += pc.samples;
    stall_samples[row.process] += pc.stall_samples;
  }
  for (size_t i = 0; i < by_row.size(); ++i) {
    const Row& row = result.rows[i];
    const bool is_whole =
        by_row[i].executions == row.executions && by_row[i].time_ns == row.time_ns;
    ASSERT_TRUE(is_whole || (by_row[i].executions == 0 && by_row[i].time_ns == 0));
    ASSERT_TRUE(row.match != Match::kInvalid || row.executions + row.time_ns == 0);
  }
  for (size_t i = 0; i < result.processes.size(); ++i) {
    ASSERT_EQ(samples[i], result.processes[i].window.pc.samples);
    ASSERT_EQ(stall_samples[i], result.processes[i].window.pc.not_issued);
  }
}

void check_model(const JoinResult& result, const Model& model) {
  int64_t sums[kValueCount] = {};
  for (const ModelSample& sample : model.samples) {
    for (size_t i = 0; i < kValueCount; ++i) sums[i] += sample.values[i];
  }
  uint64_t truth[kValueCount] = {};
  for (const ProcessResult& process : result.processes) {
    const Accounting& window = process.window;
    truth[kGpuTimeNs] += window.received_ns - window.evicted_ns;
    truth[kGpuExecutions] += window.received - window.evicted;
    truth[kGpuPcSamples] += window.pc.samples;
    truth[kGpuStallSamples] += window.pc.not_issued;
  }
  for (size_t i = 0; i < kValueCount; ++i) ASSERT_EQ(static_cast<uint64_t>(sums[i]), truth[i]) << i;
}

TEST(PcProperty, EverySampleIsInOneBucketUnderAnyLimits) {
  for (uint64_t seed = 1; seed <= 120; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    FakeFrames frames;
    FakeDevice device;
    StackTable stacks;
    Joiner joiner(random_limits(random));
    Program program(random, frames);
    Truth total;
    const auto collect = [&] {
      const JoinResult result = joiner.finish_window(&frames, &device);
      for (const ProcessResult& process : result.processes) {
        check_process(process);
        total.executions += process.window.received;
        total.time_ns += process.window.received_ns;
        total.records += process.window.pc.records;
        total.counts += process.window.pc.counts;
      }
      check_pc_rows(result);
      AssembleStats stats;
      check_model(result, assemble(result, stacks, frames, &device, {}, &stats));
    };
    uint64_t now_ns = 1;
    program.run(joiner, 600, static_cast<double>(random() % 100), [&] {
      joiner.advance(now_ns += random() % 20 == 0 ? 1 + random() % 1'000'000'000 : 10);
      if (random() % 800 == 0) collect();
    });
    collect();
    if (HasFatalFailure()) return;
    Truth expected;
    for (const auto& [process, truth] : program.truth) {
      expected.executions += truth.executions;
      expected.time_ns += truth.time_ns;
      expected.records += truth.records;
      expected.counts += truth.counts;
    }
    ASSERT_EQ(total.executions, expected.executions);
    ASSERT_EQ(total.time_ns, expected.time_ns);
    ASSERT_EQ(total.records, expected.records);
    ASSERT_EQ(total.counts, expected.counts);
  }
}

// The instruction tells which correlation a sample came from.
TEST(PcProperty, WhatIsExactIsOnItsOwnLaunch) {
  uint64_t exact_seen = 0;
  for (uint64_t seed = 500; seed < 540; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    FakeFrames frames;
    FakeDevice device;
    Joiner joiner;
    Program program(random, frames);
    program.run(joiner, 600, static_cast<double>(random() % 100), [] {});
    const JoinResult result = joiner.finish_window(&frames, &device);
    for (const PcRow& pc : result.pc_rows) {
      if (result.pc_functions[pc.function].attrib != PcAttrib::kExact) continue;
      const Row& row = result.rows[pc.row];
      const auto launched =
          program.stack_of.find({result.processes[row.process].process, pc.pc_offset / 16});
      ASSERT_NE(launched, program.stack_of.end());  // not a graph's
      if (launched->second != kNoStack) {
        ASSERT_EQ(row.stack, launched->second);
        ASSERT_EQ(row.match, Match::kExact);
      } else {
        ASSERT_NE(row.match, Match::kExact);
      }
      exact_seen += pc.samples;
    }
  }
  EXPECT_GT(exact_seen, 10'000u);
}

}  // namespace
}  // namespace gpuprof::join

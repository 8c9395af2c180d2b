// SPDX-License-Identifier: Apache-2.0
// PC sampling through the whole shim on the fake driver, whose rules end the target with status 99
// where sampling is switched in the wrong place or on the wrong thread.
#include <cuda.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <set>
#include <string>
#include <thread>

#include "tests/unit/shim/driver_calls.h"
#include "tests/unit/shim/probe_tap.h"
#include "tests/unit/shim/target_process.h"

namespace gpuprof::testing {
namespace {

const Environment kArmed = {{"GPU_PROFILED_ARM", "trace"}, {"GPU_PROFILED_STACK_RATE", "all"}};
constexpr uint32_t kLeaseMs = 60'000;

std::vector<gpuprof_pc_sample_v1> samples() {
  return ProbeTap::records<gpuprof_pc_sample_v1>(GPUPROF_PROBE_PC_SAMPLE);
}
std::vector<gpuprof_window_v1> windows() {
  return ProbeTap::records<gpuprof_window_v1>(GPUPROF_PROBE_WINDOW);
}

/// Names of one kind that were emitted, by id; those of one chunk.
std::map<uint64_t, std::string> names(gpuprof_name_kind kind) {
  std::map<uint64_t, std::string> all;
  for (const auto& name : ProbeTap::records<gpuprof_name_v1>(GPUPROF_PROBE_NAME)) {
    if (name.kind == kind) all[name.id] = std::string(name.bytes, name.chunk_bytes);
  }
  return all;
}

uint64_t counter(const ShimView& shim, gpuprof_pc_counter which) {
  return __atomic_load_n(&shim.status().pc_counters[which], __ATOMIC_RELAXED);
}

/// Sums by what the stall's name says.
struct Sums {
  uint64_t stalled = 0, not_issued = 0, sample_count = 0;
};
Sums sums() {
  const auto stalls = names(GPUPROF_NAME_STALL);
  Sums sums;
  for (const auto& sample : samples()) {
    const auto found = stalls.find(uint64_t{sample.device_id} << 32 | sample.stall_index);
    EXPECT_NE(found, stalls.end()) << sample.stall_index;
    if (found == stalls.end()) continue;
    const std::string& name = found->second;
    if (name == "smsp__pcsamp_sample_count") {
      sums.sample_count += sample.samples;
    } else if (name.ends_with("_not_issued")) {
      sums.not_issued += sample.samples;
    } else if (name.starts_with("smsp__pcsamp_warps_issue_stalled_")) {
      sums.stalled += sample.samples;
    }
  }
  return sums;
}

/// A driver that is initialised, a kernel, and the shim's page.
struct Target {
  Target() : function((start_driver(), load_function("sampled"))) {}
  void run() const { launch(function, 200'000); }
  /// Launches until the page shows `state`.
  [[nodiscard]] bool reach(gpuprof_state state) const {
    return shim.wait_for(
        state, [this] { run(); }, 20'000);
  }
  [[nodiscard]] bool reach(const std::function<bool()>& condition) const {
    return shim.wait_until(
        condition, [this] { run(); }, 20'000);
  }

  CUfunction function;
  ShimView shim;
};

TEST(CuptiPcSampling, ContinuousFromALateRequestToTheRelease) {
  EXPECT_CLEAN(run_target({}, [] {
    Target target;
    target.run();
    target.shim.request(GPUPROF_TIER_CONTINUOUS, kLeaseMs);
    ASSERT_TRUE(target.reach(GPUPROF_STATE_TRACING_PC)) << target.shim.status().pc_reason_text;
    EXPECT_EQ(target.shim.status().pc_state, GPUPROF_PC_ON);
    EXPECT_EQ(target.shim.status().pc_reason, GPUPROF_PC_REASON_NONE);
    EXPECT_EQ(target.shim.status().pc_period, 18u);
    EXPECT_EQ(target.shim.status().pc_contexts, 1u);
    EXPECT_EQ(target.shim.status().tier, GPUPROF_TIER_CONTINUOUS);
    const auto devices = ProbeTap::records<gpuprof_device_v1>(GPUPROF_PROBE_DEVICE);
    ASSERT_FALSE(devices.empty());
    EXPECT_EQ(devices.back().sampling_period, 18u);
    ASSERT_EQ(windows().size(), 1u);
    const gpuprof_window_v1 open = windows()[0];
    EXPECT_EQ(open.event, static_cast<uint32_t>(GPUPROF_WINDOW_OPEN));
    EXPECT_EQ(open.mode, 1u);
    EXPECT_EQ(open.period, 18u);
    EXPECT_NE(open.window_id, 0u);
    ASSERT_TRUE(target.reach([] { return samples().size() >= 20; }));

    target.shim.release();
    ASSERT_TRUE(target.reach(GPUPROF_STATE_IDLE)) << target.shim.reason_text();
    EXPECT_EQ(target.shim.status().pc_state, GPUPROF_PC_OFF);
    EXPECT_EQ(target.shim.status().pc_contexts, 0u);
    EXPECT_EQ(target.shim.status().tier, GPUPROF_TIER_OFF);
    ASSERT_EQ(windows().size(), 2u);
    EXPECT_EQ(windows()[1].event, static_cast<uint32_t>(GPUPROF_WINDOW_CLOSE));
    EXPECT_EQ(windows()[1].window_id, open.window_id);
    EXPECT_GT(windows()[1].time_ns, open.time_ns);
    const auto launches = ProbeTap::launches();
    ASSERT_FALSE(launches.empty());
    for (const auto& sample : samples()) {
      EXPECT_EQ(sample.cubin_key, target.shim.module(0).hash);
      EXPECT_EQ(sample.function_name_id, launches[0].name_id);
      EXPECT_EQ(sample.window_id, open.window_id);
      EXPECT_EQ(sample.context_id, open.context_id);
      EXPECT_EQ(sample.context_id, launches[0].context_id);
      EXPECT_EQ(sample.correlation, 0u);
      EXPECT_EQ(sample.epoch, 0u);
      EXPECT_GT(sample.samples, 0u);
    }
    const Sums all = sums();
    EXPECT_GT(all.stalled, 0u);
    EXPECT_EQ(all.stalled, all.sample_count);
    EXPECT_LE(all.not_issued, all.stalled);
    EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_SAMPLES), all.stalled);
    EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_ENABLES), 1u);
    EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_DISABLES), 1u);
    EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_WINDOWS), 1u);
    EXPECT_EQ(target.shim.status().probe_totals[GPUPROF_PROBE_PC_SAMPLE], samples().size());
  }));
}

TEST(CuptiPcSampling, TraceTierNeverTouchesIt) {
  EXPECT_CLEAN(run_target(kArmed, [] {
    Target target;
    target.shim.request(GPUPROF_TIER_TRACE, kLeaseMs);
    for (int i = 0; i < 300; ++i) target.run();
    EXPECT_EQ(target.shim.status().state, GPUPROF_STATE_TRACING);
    EXPECT_EQ(target.shim.status().pc_state, GPUPROF_PC_OFF);
    EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_ENABLES), 0u);
    EXPECT_TRUE(windows().empty());
  }));
}

TEST(CuptiPcSampling, TheTierGoesUpAndDownWhileTracing) {
  EXPECT_CLEAN(run_target(kArmed, [] {
    Target target;
    for (uint32_t cycle = 1; cycle <= 3; ++cycle) {
      target.shim.request(GPUPROF_TIER_CONTINUOUS, kLeaseMs);
      ASSERT_TRUE(target.reach(GPUPROF_STATE_TRACING_PC)) << target.shim.status().pc_reason_text;
      EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_ENABLES), cycle);
      target.shim.request(GPUPROF_TIER_TRACE, kLeaseMs);
      ASSERT_TRUE(target.reach(GPUPROF_STATE_TRACING));
      EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_DISABLES), cycle);
      EXPECT_EQ(target.shim.status().tier, GPUPROF_TIER_TRACE);
      EXPECT_EQ(target.shim.status().disarms, 0u);
    }
    std::set<uint64_t> ids;
    for (const auto& window : windows()) ids.insert(window.window_id);
    EXPECT_EQ(ids.size(), 3u);
  }));
}

TEST(CuptiPcSampling, AnotherPeriodConfiguresAnew) {
  EXPECT_CLEAN(run_target(kArmed, [] {
    Target target;
    target.shim.request(GPUPROF_TIER_CONTINUOUS, kLeaseMs, UINT32_MAX, 12);
    ASSERT_TRUE(target.reach(GPUPROF_STATE_TRACING_PC)) << target.shim.status().pc_reason_text;
    EXPECT_EQ(target.shim.status().pc_period, 12u);
    target.shim.request(GPUPROF_TIER_CONTINUOUS, kLeaseMs, UINT32_MAX, 20);
    ASSERT_TRUE(target.reach([&] { return target.shim.status().pc_period == 20; }));
    EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_ENABLES), 2u);
    EXPECT_EQ(ProbeTap::records<gpuprof_device_v1>(GPUPROF_PROBE_DEVICE).back().sampling_period,
              20u);
  }));
}

// The last samples of a program that stops launching come out by the service thread.
TEST(CuptiPcSampling, TheServiceThreadDrainsWhileNothingLaunches) {
  EXPECT_CLEAN(run_target(kArmed, [] {
    Target target;
    target.shim.request(GPUPROF_TIER_CONTINUOUS, kLeaseMs);
    ASSERT_TRUE(target.reach(GPUPROF_STATE_TRACING_PC)) << target.shim.status().pc_reason_text;
    launch(target.function, 50'000'000);
    EXPECT_TRUE(target.shim.wait_until([] { return !samples().empty(); }));
    for (const Firing& firing : ProbeTap::firings()) {
      if (firing.probe != GPUPROF_PROBE_PC_SAMPLE) continue;
      EXPECT_NE(firing.tid, gettid());
    }
  }));
}

TEST(CuptiPcSampling, LaunchesDrainWhileThereAreSome) {
  EXPECT_CLEAN(run_target(kArmed, [] {
    Target target;
    target.shim.request(GPUPROF_TIER_CONTINUOUS, kLeaseMs);
    ASSERT_TRUE(target.reach(GPUPROF_STATE_TRACING_PC)) << target.shim.status().pc_reason_text;
    ASSERT_TRUE(target.reach([] { return samples().size() >= 20; }));
    uint64_t own = 0, others = 0;
    for (const Firing& firing : ProbeTap::firings()) {
      if (firing.probe != GPUPROF_PROBE_PC_SAMPLE) continue;
      ++(firing.tid == gettid() ? own : others);
    }
    EXPECT_GT(own, others);
  }));
}

TEST(CuptiPcSampling, LateReaderGetsStallNamesAndTheOpenWindow) {
  EXPECT_CLEAN(run_target(kArmed, [] {
    Target target;
    target.shim.request(GPUPROF_TIER_CONTINUOUS, kLeaseMs);
    ASSERT_TRUE(target.reach(GPUPROF_STATE_TRACING_PC)) << target.shim.status().pc_reason_text;
    const auto stalls = names(GPUPROF_NAME_STALL);
    EXPECT_EQ(stalls.size(), 40u);
    ProbeTap::attach(0);
    usleep(250'000);
    ProbeTap::clear();
    ProbeTap::attach(1);
    EXPECT_TRUE(target.shim.wait_until([&] { return names(GPUPROF_NAME_STALL) == stalls; }));
    EXPECT_TRUE(target.shim.wait_until([] { return windows().size() == 1; }));
    EXPECT_EQ(windows()[0].event, static_cast<uint32_t>(GPUPROF_WINDOW_OPEN));
  }));
}

}  // namespace
}  // namespace gpuprof::testing

// SPDX-License-Identifier: Apache-2.0
// The serialized tier on the fake driver, which ends the target at once where a kernel that waits
// for others is launched in a window.
#include <cuda.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "shim/core/clock.h"
#include "tests/unit/shim/pc_target.h"

namespace gpuprof::testing {
namespace {

bool window_is_open() {
  const auto all = windows();
  return !all.empty() && all.back().event == GPUPROF_WINDOW_OPEN;
}

/// The device code of a CUDA graph with three kernels.
CUgraphExec make_graph(CUfunction function) {
  CUstream stream = nullptr;
  EXPECT_EQ(cuStreamCreate(&stream, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  for (int i = 0; i < 3; ++i) launch(function, 1000, stream);
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
  return exec;
}

CUresult launch_cooperative(CUfunction function) {
  uint64_t duration_ns = 1000;
  void* params[] = {&duration_ns};
  return cuLaunchCooperativeKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, params);
}

CUresult launch_cooperative_by_attribute(CUfunction function) {
  uint64_t duration_ns = 1000;
  void* params[] = {&duration_ns};
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  attribute.value.cooperative = 1;
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = 32;
  config.blockDimY = config.blockDimZ = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cuLaunchKernelEx(&config, function, params, nullptr);
}

TEST(CuptiPcSerialized, WindowsWithCorrelations) {
  EXPECT_CLEAN(run_target(armed_with(), [] {
    Target target;
    ASSERT_TRUE(target.sample(GPUPROF_TIER_SERIALIZED, 12)) << target.why();
    EXPECT_EQ(target.shim.status().tier, GPUPROF_TIER_SERIALIZED);
    ASSERT_TRUE(target.reach([] { return windows().size() >= 5; }));
    target.shim.release();
    ASSERT_TRUE(target.reach(GPUPROF_STATE_IDLE));
    const auto all = windows();
    ASSERT_EQ(all.size() % 2, 0u);
    uint64_t open_ns = 0;
    std::set<uint64_t> ids;
    for (size_t i = 0; i < all.size(); i += 2) {
      EXPECT_EQ(all[i].event, static_cast<uint32_t>(GPUPROF_WINDOW_OPEN));
      EXPECT_EQ(all[i].mode, 2u);
      EXPECT_EQ(all[i + 1].event, static_cast<uint32_t>(GPUPROF_WINDOW_CLOSE));
      EXPECT_EQ(all[i + 1].window_id, all[i].window_id);
      ids.insert(all[i].window_id);
      open_ns += all[i + 1].time_ns - all[i].time_ns;
      if (i + 2 < all.size()) {
        // A 25th of the time, whatever the machine makes of a window's length; after the first
        // one, which may be long, a pause of 1.2 s is enough.
        const uint64_t length_ns = all[i + 1].time_ns - all[i].time_ns;
        const uint64_t pause_ns = all[i + 2].time_ns - all[i + 1].time_ns;
        const uint64_t wanted_ns =
            i == 0 ? std::min<uint64_t>(24 * length_ns, 1'200'000'000) : 24 * length_ns;
        EXPECT_GE(pause_ns + 50'000'000, wanted_ns) << i;
        EXPECT_GE(all[i + 1].time_ns - all[i].time_ns, 49'000'000u) << i;
      }
    }
    EXPECT_GT(open_ns, 0u);
    std::map<uint32_t, uint32_t> epoch_of;
    for (const auto& exec : ProbeTap::execs()) epoch_of[exec.correlation] = exec.epoch;
    ASSERT_FALSE(samples().empty());
    for (const auto& sample : samples()) {
      ASSERT_TRUE(epoch_of.contains(sample.correlation)) << sample.correlation;
      EXPECT_EQ(sample.epoch, epoch_of[sample.correlation]);
      EXPECT_TRUE(ids.contains(sample.window_id));
    }
    EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_WINDOWS), all.size() / 2);
  }));
}

// At 10 % of the time pauses are nine windows long instead of 24. Only the least is sure on a busy
// machine; the longest is compared with what 4 % would have made of it.
TEST(CuptiPcSerialized, TheControllerChoosesTheShareOfTheTime) {
  EXPECT_CLEAN(run_target(armed_with(), [] {
    Target target;
    target.shim.request(GPUPROF_TIER_SERIALIZED, GPUPROF_LEASE_MS_MAX, UINT32_MAX, 12, 100);
    ASSERT_TRUE(target.reach(GPUPROF_STATE_TRACING_PC)) << target.why();
    ASSERT_TRUE(target.reach([] { return windows().size() >= 9; }));
    target.shim.release();
    ASSERT_TRUE(target.reach(GPUPROF_STATE_IDLE));
    const auto all = windows();
    uint64_t length_ns = 0, pause_ns = 0;
    for (size_t i = 2; i + 2 < all.size(); i += 2) {  // after the first, whose pause is bounded
      const uint64_t length = all[i + 1].time_ns - all[i].time_ns;
      const uint64_t pause = all[i + 2].time_ns - all[i + 1].time_ns;
      EXPECT_GE(pause + 50'000'000, 9 * length) << i;
      length_ns += length;
      pause_ns += pause;
    }
    EXPECT_LT(pause_ns, 20 * length_ns);
  }));
}

TEST(CuptiPcSerialized, RefusedAtStartWhereAGraphRan) {
  EXPECT_CLEAN(run_target(armed_with(), [] {
    Target target;
    CUgraphExec graph = make_graph(target.function);
    ASSERT_EQ(cuGraphLaunch(graph, nullptr), CUDA_SUCCESS);
    fake_cuda_drain();
    ASSERT_TRUE(target.shim.wait_until([] { return ProbeTap::execs().size() == 3; }));
    ASSERT_TRUE(target.refused(GPUPROF_TIER_SERIALIZED));
    EXPECT_EQ(target.shim.status().pc_reason, GPUPROF_PC_REASON_GRAPH);
    EXPECT_NE(target.why().find("graph"), std::string::npos);
    EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_GRAPH_REFUSED), 1u);
    EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_ENABLES), 0u);
    EXPECT_EQ(target.shim.status().state, GPUPROF_STATE_TRACING);
    // The continuous tier has nothing against graphs, and serialized stays refused after it.
    ASSERT_TRUE(target.sample()) << target.why();
    EXPECT_EQ(target.shim.status().pc_reason, GPUPROF_PC_REASON_NONE);
    target.shim.request(GPUPROF_TIER_SERIALIZED);
    ASSERT_TRUE(target.reach([&] { return target.shim.status().pc_state == GPUPROF_PC_REFUSED; }));
    EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_GRAPH_REFUSED), 2u);
    EXPECT_EQ(target.shim.status().pc_contexts, 0u);
  }));
}

struct Sight {
  const char* name;
  const char* kernel;
  std::function<CUresult(CUfunction)> launch;
  gpuprof_pc_reason reason;
  gpuprof_pc_counter counter;
};

CUresult launch_plain(CUfunction function) {
  launch(function);
  return CUDA_SUCCESS;
}

/// For the test's name, which would be the struct's bytes.
void PrintTo(const Sight& sight, std::ostream* out) { *out << sight.name; }

class CuptiPcSights : public ::testing::TestWithParam<Sight> {};

// In an open window: it is closed before the kernel is launched, and no other is ever opened.
TEST_P(CuptiPcSights, EndsTheWindowBeforeTheLaunch) {
  EXPECT_CLEAN(run_target(armed_with(), [] {
    const Sight& sight = GetParam();
    Target target;
    CUfunction other = load_function(sight.kernel);
    ASSERT_TRUE(target.sample(GPUPROF_TIER_SERIALIZED, 12)) << target.why();
    ASSERT_TRUE(target.reach(window_is_open));
    ASSERT_EQ(sight.launch(other), CUDA_SUCCESS);
    EXPECT_FALSE(window_is_open());
    ASSERT_TRUE(target.reach([&] { return target.shim.status().pc_state == GPUPROF_PC_REFUSED; }));
    EXPECT_EQ(target.shim.status().pc_reason, static_cast<uint32_t>(sight.reason));
    EXPECT_EQ(counter(target.shim, sight.counter), 1u);
    EXPECT_EQ(target.shim.status().pc_contexts, 0u);
    EXPECT_EQ(target.shim.status().state, GPUPROF_STATE_TRACING);
    EXPECT_EQ(windows().size(), 2u);
    for (int i = 0; i < 5; ++i) ASSERT_EQ(sight.launch(other), CUDA_SUCCESS);
  }));
}

// Between windows.
TEST_P(CuptiPcSights, NoWindowIsOpenedAfterIt) {
  EXPECT_CLEAN(run_target(armed_with(), [] {
    const Sight& sight = GetParam();
    Target target;
    CUfunction other = load_function(sight.kernel);
    ASSERT_TRUE(target.sample(GPUPROF_TIER_SERIALIZED, 12)) << target.why();
    ASSERT_EQ(sight.launch(other), CUDA_SUCCESS);
    ASSERT_TRUE(target.reach([&] { return target.shim.status().pc_state == GPUPROF_PC_REFUSED; }));
    EXPECT_EQ(target.shim.status().pc_reason, static_cast<uint32_t>(sight.reason));
    EXPECT_TRUE(windows().empty());
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Launches, CuptiPcSights,
    ::testing::Values(Sight{"nccl", "_Z45ncclDevKernel_AllReduce_Sum_f32_RING_LLP11ncclDevComm",
                            launch_plain, GPUPROF_PC_REASON_COLLECTIVE,
                            GPUPROF_PC_COUNT_COLLECTIVE_REFUSED},
                      Sight{"old_nccl", "_Z32ncclKernel_AllReduce_RING_LL_Sum_floatP11ncclDevComm",
                            launch_plain, GPUPROF_PC_REASON_COLLECTIVE,
                            GPUPROF_PC_COUNT_COLLECTIVE_REFUSED},
                      Sight{"nvshmem", "_ZN7nvshmem17barrier_on_streamEv", launch_plain,
                            GPUPROF_PC_REASON_COLLECTIVE, GPUPROF_PC_COUNT_COLLECTIVE_REFUSED},
                      Sight{"cooperative", "grid_sync", launch_cooperative,
                            GPUPROF_PC_REASON_COOPERATIVE, GPUPROF_PC_COUNT_COOPERATIVE_REFUSED},
                      Sight{"cooperative_attribute", "grid_sync", launch_cooperative_by_attribute,
                            GPUPROF_PC_REASON_COOPERATIVE, GPUPROF_PC_COUNT_COOPERATIVE_REFUSED},
                      Sight{"graph", "node",
                            [](CUfunction function) {
                              static CUgraphExec graph = make_graph(function);
                              return cuGraphLaunch(graph, nullptr);
                            },
                            GPUPROF_PC_REASON_GRAPH, GPUPROF_PC_COUNT_GRAPH_REFUSED}),
    [](const auto& test) { return std::string(test.param.name); });

// Executed while only tracing: known from the activity records.
TEST(CuptiPcSerialized, RefusedAtStartWhereACollectiveRan) {
  EXPECT_CLEAN(run_target(armed_with(), [] {
    Target target;
    launch(load_function("_Z45ncclDevKernel_AllReduce_Sum_f32_RING_LLP11ncclDevComm"));
    fake_cuda_drain();
    ASSERT_TRUE(target.shim.wait_until([] { return ProbeTap::execs().size() == 1; }));
    ASSERT_TRUE(target.refused(GPUPROF_TIER_SERIALIZED));
    EXPECT_EQ(target.shim.status().pc_reason, GPUPROF_PC_REASON_COLLECTIVE);
    EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_ENABLES), 0u);
  }));
}

// Launches of several threads, one of which launches collectives: the rule of the fake holds.
TEST(CuptiPcSerialized, RacingThreads) {
  for (int round = 0; round < 3 && !HasFailure(); ++round) {
    EXPECT_CLEAN(run_target(armed_with(), [round] {
      Target target;
      CUfunction nccl = load_function("ncclDevKernel_AllReduce");
      ASSERT_TRUE(target.sample(GPUPROF_TIER_SERIALIZED, 12)) << target.why();
      std::atomic<bool> stop{false};
      std::vector<std::thread> threads;
      for (int i = 0; i < 2; ++i) {
        threads.emplace_back([&] {
          CUstream stream = nullptr;
          cuStreamCreate(&stream, 0);
          while (!stop) launch(target.function, 2'000, stream);
        });
      }
      // The third round comes to the very moment at which the first window opens.
      if (round < 2) {
        EXPECT_TRUE(target.reach(window_is_open));
      } else {
        usleep(995'000);
      }
      for (int i = 0; i < 200; ++i) launch(nccl, 1000);
      stop = true;
      for (auto& thread : threads) thread.join();
      EXPECT_TRUE(
          target.reach([&] { return target.shim.status().pc_state == GPUPROF_PC_REFUSED; }));
    }));
  }
}

// A flush may wait for the callback of a launch, and that of a collective waits for the Guard.
TEST(CuptiPcSerialized, NoFlushStandsBetweenACollectiveAndTheWindow) {
  EXPECT_CLEAN(run_target(armed_with({{"FAKE_CUDA_FLUSH_WAITS", "1"}}), [] {
    Target target;
    CUfunction nccl = load_function("ncclDevKernel_AllReduce");
    ASSERT_TRUE(target.sample(GPUPROF_TIER_SERIALIZED, 12)) << target.why();
    ASSERT_TRUE(target.reach([&] {
      if (!window_is_open()) return false;
      // A flush would be due twice in this time. A window that the test has slept through is not
      // kept from them any more.
      const uint64_t before = totals().flushes.load();
      (void)target.shim.wait_until([&] { return totals().flushes.load() != before; }, {}, 200);
      return shim::monotonic_ns() - windows().back().time_ns < 700'000'000;
    }));
    ASSERT_TRUE(window_is_open());
    launch(nccl);
    EXPECT_FALSE(window_is_open());
    ASSERT_TRUE(target.reach([&] { return target.shim.status().pc_state == GPUPROF_PC_REFUSED; }));
  }));
}

// What was asked for is over, the window is not: it ends in a launch.
void release_in_a_window(Target& target) {
  ASSERT_TRUE(target.sample(GPUPROF_TIER_SERIALIZED, 12)) << target.why();
  ASSERT_TRUE(target.reach(window_is_open));
  target.shim.request(GPUPROF_TIER_TRACE);
  target.shim.wait_for_round();
  target.shim.wait_for_round();
  ASSERT_TRUE(window_is_open());
}

// And this one comes first.
TEST(CuptiPcSerialized, ACollectiveAfterTheReleaseEndsTheWindowToo) {
  EXPECT_CLEAN(run_target(armed_with(), [] {
    Target target;
    CUfunction nccl = load_function("ncclSymkDevKernel_AllReduce");
    ASSERT_NO_FATAL_FAILURE(release_in_a_window(target));
    launch(nccl);
    EXPECT_FALSE(window_is_open());
    ASSERT_TRUE(target.reach([&] { return target.shim.status().pc_state == GPUPROF_PC_OFF; }));
  }));
}

// The launch of another thread that ends it is inside CUPTI: kernels are still serialized.
TEST(CuptiPcSerialized, ACollectiveWaitsForTheEndOfAWindow) {
  EXPECT_CLEAN(run_target(armed_with({{"FAKE_CUDA_PC_STOP_MS", "300"}}), [] {
    Target target;
    CUfunction nccl = load_function("ncclDevKernel_AllReduce");
    ASSERT_NO_FATAL_FAILURE(release_in_a_window(target));
    std::thread ending([&] { target.run(); });
    usleep(100'000);
    launch(nccl);
    EXPECT_FALSE(window_is_open());
    ending.join();
    ASSERT_TRUE(target.reach([&] { return target.shim.status().pc_state == GPUPROF_PC_OFF; }));
  }));
}

TEST(CuptiPcSerialized, WindowsComeBackWhenItIsAskedForAgain) {
  EXPECT_CLEAN(run_target(armed_with(), [] {
    Target target;
    ASSERT_TRUE(target.sample(GPUPROF_TIER_SERIALIZED, 12)) << target.why();
    target.shim.request(GPUPROF_TIER_TRACE);
    target.shim.wait_for_round();
    target.shim.wait_for_round();
    target.shim.request(GPUPROF_TIER_SERIALIZED, GPUPROF_LEASE_MS_MAX, UINT32_MAX, 12);
    target.shim.wait_for_round();
    target.shim.wait_for_round();
    const size_t before = windows().size();
    ASSERT_TRUE(target.reach([&] { return windows().size() >= before + 4; }));
    EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_ENABLES), 1u);
  }));
}

TEST(CuptiPcSerialized, StartThatFailsIsARefusal) {
  EXPECT_CLEAN(run_target(armed_with({{"FAKE_CUDA_PC_FAIL", "3:7"}}), [] {
    Target target;
    ASSERT_TRUE(target.refused(GPUPROF_TIER_SERIALIZED));
    EXPECT_NE(target.why().find("cuptiPCSamplingStart answered 7"), std::string::npos);
    EXPECT_TRUE(windows().empty());
    EXPECT_EQ(target.shim.status().pc_contexts, 0u);
  }));
}

TEST(CuptiPcSerialized, StopThatFailsDisables) {
  EXPECT_CLEAN(run_target(armed_with({{"FAKE_CUDA_PC_FAIL", "4:999"}}), [] {
    Target target;
    ASSERT_TRUE(target.refused(GPUPROF_TIER_SERIALIZED));
    EXPECT_NE(target.why().find("cuptiPCSamplingStop answered 999"), std::string::npos);
    EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_DISABLES), 1u);
    EXPECT_FALSE(window_is_open());
  }));
}

TEST(CuptiPcSerialized, NoWindowDuringACapture) {
  EXPECT_CLEAN(run_target(armed_with(), [] {
    Target target;
    CUstream stream = nullptr;
    ASSERT_EQ(cuStreamCreate(&stream, 0), CUDA_SUCCESS);
    ASSERT_TRUE(target.sample(GPUPROF_TIER_SERIALIZED, 12)) << target.why();
    ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    const uint64_t skipped = counter(target.shim, GPUPROF_PC_COUNT_SKIPPED_CAPTURE);
    ASSERT_TRUE(target.shim.wait_until(
        [&] { return counter(target.shim, GPUPROF_PC_COUNT_SKIPPED_CAPTURE) >= skipped + 50; },
        [&] {
          launch(target.function, 1000, stream);
          target.run();
        }));
    EXPECT_TRUE(windows().empty());
    CUgraph graph = nullptr;
    ASSERT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    EXPECT_TRUE(target.reach(window_is_open));
  }));
}

}  // namespace
}  // namespace gpuprof::testing

// SPDX-License-Identifier: Apache-2.0
// PC sampling through the whole shim on the fake driver, whose rules end the target with status 99
// where sampling is switched in the wrong place or on the wrong thread.
#include <cuda.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/shim/pc_target.h"

namespace gpuprof::testing {
namespace {

// As `run` starts a program: its environment arms it, and the daemon grants it the GPUs. The lease
// of what arms at init is 2 s, which a busy machine may spend elsewhere: one of five targets must
// be traced in it.
TEST(CuptiPcSampling, ContinuousFromTheEnvironment) {
  int status = -1;
  for (int attempt = 0; attempt < 5 && status != 0; ++attempt) {
    status = run_target(armed_with({{"GPU_PROFILED_ARM", "continuous"}}), [] {
               start_driver(false);
               const CUfunction function = load_function("sampled");
               ShimView shim;
               const bool traced = shim.wait_until(
                   [&] {
                     return shim.status().state == GPUPROF_STATE_TRACING &&
                            shim.status().pc_reason == GPUPROF_PC_REASON_GPU_TAKEN;
                   },
                   [&] { launch(function, 200'000); }, 2500);
               // Until then another process may sample the GPU.
               if (!traced || counter(shim, GPUPROF_PC_COUNT_ENABLES) != 0) _exit(1);
               shim.request(GPUPROF_TIER_CONTINUOUS);
               const bool sampled =
                   shim.wait_until([&] { return shim.status().pc_state == GPUPROF_PC_ON; },
                                   [&] { launch(function, 200'000); }, 2500);
               if (!sampled) _exit(1);
               EXPECT_EQ(shim.status().tier, GPUPROF_TIER_CONTINUOUS);
             }).status;
  }
  EXPECT_EQ(status, 0);
}

TEST(CuptiPcSampling, ContinuousFromALateRequestToTheRelease) {
  EXPECT_CLEAN(run_target({}, [] {
    Target target;
    target.run();
    ASSERT_TRUE(target.sample()) << target.why();
    EXPECT_EQ(target.shim.status().pc_state, GPUPROF_PC_ON);
    EXPECT_EQ(target.shim.status().pc_reason, GPUPROF_PC_REASON_NONE);
    EXPECT_EQ(target.shim.status().pc_period, 20u);
    EXPECT_EQ(target.shim.status().pc_contexts, 1u);
    EXPECT_EQ(target.shim.status().tier, GPUPROF_TIER_CONTINUOUS);
    const auto devices = ProbeTap::records<gpuprof_device_v1>(GPUPROF_PROBE_DEVICE);
    ASSERT_FALSE(devices.empty());
    EXPECT_EQ(devices.back().sampling_period, 20u);
    ASSERT_EQ(windows().size(), 1u);
    const gpuprof_window_v1 open = windows()[0];
    EXPECT_EQ(open.event, static_cast<uint32_t>(GPUPROF_WINDOW_OPEN));
    EXPECT_EQ(open.mode, 1u);
    EXPECT_EQ(open.period, 20u);
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
  EXPECT_CLEAN(run_target(armed_with(), [] {
    Target target;
    target.shim.request(GPUPROF_TIER_TRACE);
    for (int i = 0; i < 300; ++i) target.run();
    EXPECT_EQ(target.shim.status().state, GPUPROF_STATE_TRACING);
    EXPECT_EQ(target.shim.status().pc_state, GPUPROF_PC_OFF);
    EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_ENABLES), 0u);
    EXPECT_TRUE(windows().empty());
  }));
}

TEST(CuptiPcSampling, TheTierGoesUpAndDownWhileTracing) {
  EXPECT_CLEAN(run_target(armed_with(), [] {
    Target target;
    for (uint32_t cycle = 1; cycle <= 3; ++cycle) {
      ASSERT_TRUE(target.sample()) << target.why();
      EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_ENABLES), cycle);
      target.shim.request(GPUPROF_TIER_TRACE);
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
  EXPECT_CLEAN(run_target(armed_with(), [] {
    Target target;
    ASSERT_TRUE(target.sample(GPUPROF_TIER_CONTINUOUS, 12)) << target.why();
    EXPECT_EQ(target.shim.status().pc_period, 12u);
    target.shim.request(GPUPROF_TIER_CONTINUOUS, GPUPROF_LEASE_MS_MAX, UINT32_MAX, 20);
    ASSERT_TRUE(target.reach([&] { return target.shim.status().pc_period == 20; }));
    EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_ENABLES), 2u);
    EXPECT_EQ(ProbeTap::records<gpuprof_device_v1>(GPUPROF_PROBE_DEVICE).back().sampling_period,
              20u);
  }));
}

// The last samples of a program that stops launching come out by the service thread.
TEST(CuptiPcSampling, TheServiceThreadDrainsWhileNothingLaunches) {
  EXPECT_CLEAN(run_target(armed_with(), [] {
    Target target;
    ASSERT_TRUE(target.sample()) << target.why();
    launch(target.function, 50'000'000);
    EXPECT_TRUE(target.shim.wait_until([] { return !samples().empty(); }));
    for (const Firing& firing : ProbeTap::firings()) {
      if (firing.probe != GPUPROF_PROBE_PC_SAMPLE) continue;
      EXPECT_NE(firing.tid, gettid());
    }
  }));
}

TEST(CuptiPcSampling, LaunchesDrainWhileThereAreSome) {
  EXPECT_CLEAN(run_target(armed_with(), [] {
    Target target;
    ASSERT_TRUE(target.sample()) << target.why();
    ASSERT_TRUE(target.reach([] { return samples().size() >= 20; }));
    uint64_t own = 0, others = 0;
    for (const Firing& firing : ProbeTap::firings()) {
      if (firing.probe != GPUPROF_PROBE_PC_SAMPLE) continue;
      ++(firing.tid == gettid() ? own : others);
    }
    EXPECT_GT(own, others);
  }));
}

// Two GPUs of one process: each record says which, and its stalls are numbered as on that one.
TEST(CuptiPcSampling, SeveralGpus) {
  EXPECT_CLEAN(run_target(armed_with({{"FAKE_CUDA_DEVICES", "2"}}), [] {
    Target target;
    ASSERT_TRUE(target.sample()) << target.why();
    CUcontext first = nullptr, second = nullptr;
    ASSERT_EQ(cuCtxGetCurrent(&first), CUDA_SUCCESS);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&second, 1), CUDA_SUCCESS);
    const auto both = [&] {
      target.run();
      cuCtxSetCurrent(second);
      target.run();
      cuCtxSetCurrent(first);
    };
    std::map<uint32_t, uint64_t> of_device;
    ASSERT_TRUE(target.shim.wait_until(
        [&] {
          for (const auto& sample : samples()) ++of_device[sample.device_id];
          return of_device.size() == 2;
        },
        both));
    EXPECT_EQ(target.shim.status().pc_contexts, 2u);
    target.shim.release();
    ASSERT_TRUE(target.shim.wait_for(GPUPROF_STATE_IDLE, both));
    EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_DISABLES), 2u);
    const Sums all = sums();  // fails on an index that its device did not name
    EXPECT_EQ(all.stalled, all.sample_count);
    EXPECT_EQ(names(GPUPROF_NAME_STALL).size(), 80u);
  }));
}

// Nothing launches on the second GPU any more: a launch on the first one switches it off.
TEST(CuptiPcSampling, AnIdleGpuDoesNotHoldUpTheDisarm) {
  EXPECT_CLEAN(run_target(armed_with({{"FAKE_CUDA_DEVICES", "2"}}), [] {
    Target target;
    ASSERT_TRUE(target.sample()) << target.why();
    CUcontext first = nullptr, second = nullptr;
    ASSERT_EQ(cuCtxGetCurrent(&first), CUDA_SUCCESS);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&second, 1), CUDA_SUCCESS);
    cuCtxSetCurrent(second);
    ASSERT_TRUE(target.reach([&] { return target.shim.status().pc_contexts == 2; }));
    cuCtxSetCurrent(first);
    target.shim.release();
    EXPECT_TRUE(target.reach(GPUPROF_STATE_IDLE)) << target.shim.reason_text();
  }));
}

TEST(CuptiPcSampling, ASecondContextOfAGpuIsRefusedUntilTheFirstIsGone) {
  EXPECT_CLEAN(run_target(armed_with(), [] {
    Target target;
    ASSERT_TRUE(target.sample()) << target.why();
    CUcontext first = nullptr, second = nullptr;
    ASSERT_EQ(cuCtxGetCurrent(&first), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxCreate_v4(&second, nullptr, 0, 0), CUDA_SUCCESS);
    for (int i = 0; i < 20; ++i) target.run();
    EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_CONTEXTS_REFUSED), 1u);
    EXPECT_EQ(target.shim.status().pc_contexts, 1u);
    EXPECT_EQ(target.shim.status().pc_state, GPUPROF_PC_ON);
    EXPECT_NE(target.why().find("is not sampled"), std::string::npos) << target.why();
    const uint32_t sampled = windows()[0].context_id;
    ASSERT_EQ(cuCtxDestroy_v2(first), CUDA_SUCCESS);
    ASSERT_EQ(windows().size(), 2u);
    EXPECT_EQ(windows()[1].event, static_cast<uint32_t>(GPUPROF_WINDOW_CLOSE));
    ASSERT_TRUE(target.reach([] { return windows().size() == 3; }));
    EXPECT_NE(windows()[2].context_id, sampled);
    EXPECT_EQ(target.shim.status().pc_contexts, 1u);
  }));
}

TEST(CuptiPcSampling, ANewContextIsSampledFromItsBeginning) {
  EXPECT_CLEAN(run_target(armed_with({{"FAKE_CUDA_DEVICES", "2"}}), [] {
    Target target;
    ASSERT_TRUE(target.sample()) << target.why();
    CUcontext second = nullptr;
    ASSERT_EQ(cuCtxCreate_v4(&second, nullptr, 0, 1), CUDA_SUCCESS);
    EXPECT_EQ(target.shim.status().pc_contexts, 2u);
  }));
}

// The fake breaks a rule where samples of an unloaded module are left to the next one.
TEST(CuptiPcSampling, ModulesThatComeAndGoKeepTheirSamples) {
  EXPECT_CLEAN(run_target(armed_with(), [] {
    Target target;
    ASSERT_TRUE(target.sample(GPUPROF_TIER_CONTINUOUS, 10)) << target.why();
    std::set<uint64_t> keys;
    for (int i = 0; i < 10; ++i) {
      std::string image(200, static_cast<char>('a' + i));
      CUmodule module = nullptr;
      ASSERT_EQ(cuModuleLoadData(&module, image.c_str()), CUDA_SUCCESS);
      CUfunction function = nullptr;
      ASSERT_EQ(cuModuleGetFunction(&function, module, "short_lived"), CUDA_SUCCESS);
      launch(function, 500'000);
      fake_cuda_drain();
      ASSERT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
      keys.insert(target.shim.module(static_cast<uint32_t>(i + 1)).hash);
      EXPECT_EQ(target.shim.module(static_cast<uint32_t>(i + 1)).state, GPUPROF_MODULE_COPIED);
    }
    std::set<uint64_t> sampled;
    for (const auto& sample : samples()) sampled.insert(sample.cubin_key);
    for (const uint64_t key : keys) EXPECT_TRUE(sampled.contains(key));
  }));
}

TEST(CuptiPcSampling, NothingIsSwitchedDuringACapture) {
  EXPECT_CLEAN(run_target(armed_with(), [] {
    Target target;
    CUstream stream = nullptr;
    ASSERT_EQ(cuStreamCreate(&stream, 0), CUDA_SUCCESS);
    target.run();
    target.shim.wait_for_round();  // the devices are known
    target.shim.wait_for_round();
    CUgraph graph = nullptr;
    ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    target.shim.request(GPUPROF_TIER_CONTINUOUS);
    ASSERT_TRUE(target.reach([&] { return target.shim.status().pc_state == GPUPROF_PC_WAITING; }));
    for (int i = 0; i < 10; ++i) launch(target.function, 1000, stream);
    for (int i = 0; i < 10; ++i) target.run();
    EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_ENABLES), 0u);
    EXPECT_GT(counter(target.shim, GPUPROF_PC_COUNT_SKIPPED_CAPTURE), 0u);
    ASSERT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    ASSERT_TRUE(target.reach(GPUPROF_STATE_TRACING_PC));
    ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    target.shim.request(GPUPROF_TIER_TRACE);
    target.shim.wait_for_round();
    target.shim.wait_for_round();
    for (int i = 0; i < 10; ++i) launch(target.function, 1000, stream);
    for (int i = 0; i < 10; ++i) target.run();
    EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_DISABLES), 0u);
    ASSERT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    EXPECT_TRUE(target.reach(GPUPROF_STATE_TRACING));
  }));
}

// The fake breaks a rule where one does.
TEST(CuptiPcSampling, NoCaptureBeginsWhileAnotherThreadSwitches) {
  EXPECT_CLEAN(run_target(armed_with({{"FAKE_CUDA_PC_ENABLE_MS", "100"}}), [] {
    Target target;
    CUcontext context = nullptr;
    CUstream stream = nullptr;
    ASSERT_EQ(cuCtxGetCurrent(&context), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamCreate(&stream, 0), CUDA_SUCCESS);
    target.run();
    for (int turn = 0; turn < 3; ++turn) {
      std::thread switching([&] {
        cuCtxSetCurrent(context);
        EXPECT_TRUE(target.sample()) << target.why();
      });
      EXPECT_TRUE(
          target.shim.wait_until([] { return fake_cuda_interface()->switching.load() != 0; }));
      EXPECT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
      CUgraph graph = nullptr;
      EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
      switching.join();
      target.shim.request(GPUPROF_TIER_TRACE);
      EXPECT_TRUE(target.reach(GPUPROF_STATE_TRACING));
    }
  }));
}

// A flush may wait until a callback of another thread returns: a capture that begins must not wait
// for the flush.
TEST(CuptiPcSampling, ACaptureBeginsBesideAFlush) {
  EXPECT_CLEAN(run_target(armed_with({{"FAKE_CUDA_FLUSH_WAITS", "1"}}), [] {
    Target target;
    target.run();
    EXPECT_TRUE(target.sample()) << target.why();
    CUstream stream = nullptr;
    ASSERT_EQ(cuStreamCreate(&stream, 0), CUDA_SUCCESS);
    uint64_t longest_ns = 0;
    for (int i = 0; i < 60; ++i) {
      target.run();
      usleep(20'000);  // a flush is likely to wait now
      const uint64_t begin_ns = fake_cuda_interface()->now();
      EXPECT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
      longest_ns = std::max(longest_ns, fake_cuda_interface()->now() - begin_ns);
      CUgraph graph = nullptr;
      EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    }
    EXPECT_LT(longest_ns, 1'000'000'000u) << "as long as it would wait for a switch";
  }));
}

TEST(CuptiPcSampling, CyclesUnderLoad) {
  EXPECT_CLEAN(run_target(
      {},
      [] {
        Target target;
        std::atomic<bool> stop{false};
        std::vector<std::thread> threads;
        for (int i = 0; i < 3; ++i) {
          threads.emplace_back([&] {
            CUstream stream = nullptr;
            cuStreamCreate(&stream, 0);
            while (!stop) launch(target.function, 20'000, stream);
          });
        }
        for (int cycle = 0; cycle < 10; ++cycle) {
          EXPECT_TRUE(target.sample()) << target.why();
          target.shim.release();
          EXPECT_TRUE(target.reach(GPUPROF_STATE_IDLE)) << target.shim.reason_text();
        }
        stop = true;
        for (auto& thread : threads) thread.join();
        EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_ENABLES), 10u);
        EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_DISABLES), 10u);
        EXPECT_EQ(windows().size(), 20u);
      },
      120));
}

// The last samples come out at exit, within its bound; the window is closed.
TEST(CuptiPcSampling, ExitDrains) {
  const Outcome outcome = run_target(armed_with(), [] {
    static Target* target = nullptr;  // outlives the exit handlers
    atexit([] {
      // Registered before the shim's handler, so it runs after it.
      if (windows().size() != 1) _exit(11);  // its close
      if (samples().empty()) _exit(12);
      if (target->shim.status().pc_state != GPUPROF_PC_OFF) _exit(13);
    });
    target = new Target;
    EXPECT_TRUE(target->sample()) << target->why();
    ProbeTap::clear();
    launch(target->function, 30'000'000);
    fake_cuda_drain();
    EXPECT_TRUE(windows().empty());
    target->shim.request(GPUPROF_TIER_CONTINUOUS);
  });
  EXPECT_CLEAN(outcome);
}

TEST(CuptiPcSampling, LateReaderGetsStallNamesAndTheOpenWindow) {
  EXPECT_CLEAN(run_target(armed_with(), [] {
    Target target;
    ASSERT_TRUE(target.sample()) << target.why();
    const auto stalls = names(GPUPROF_NAME_STALL);
    EXPECT_EQ(stalls.size(), 40u);
    ProbeTap::attach(0);
    target.shim.wait_for_round();  // which sees that nobody is attached
    target.shim.wait_for_round();
    ProbeTap::clear();
    ProbeTap::attach(1);
    EXPECT_TRUE(target.shim.wait_until([&] { return names(GPUPROF_NAME_STALL) == stalls; }));
    EXPECT_TRUE(target.shim.wait_until([] { return windows().size() == 1; }));
    EXPECT_EQ(windows()[0].event, static_cast<uint32_t>(GPUPROF_WINDOW_OPEN));
  }));
}

}  // namespace
}  // namespace gpuprof::testing

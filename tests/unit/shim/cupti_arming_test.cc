// SPDX-License-Identifier: Apache-2.0
// The states of the whole shim on the fake driver. Every test also fails on a call that the fake's
// rules forbid: it ends the target with status 99.
#include <cuda.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <filesystem>
#include <set>
#include <thread>

#include "tests/unit/shim/driver_calls.h"
#include "tests/unit/shim/probe_tap.h"
#include "tests/unit/shim/target_process.h"

namespace gpuprof::testing {
namespace {

const Environment kArmed = armed_with();

uint64_t clock_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

/// Every execution that CUPTI owed a record for has come out.
bool all_received() { return ProbeTap::execs().size() == totals().queued.load(); }

TEST(CuptiArming, ArmedAtInitEmitsEveryLaunchAndExecution) {
  EXPECT_CLEAN(run_target(kArmed, [] {
    start_driver();
    const ShimView shim;
    ASSERT_TRUE(shim.exists());
    EXPECT_EQ(shim.status().state, GPUPROF_STATE_TRACING) << shim.reason_text();
    ASSERT_EQ(ProbeTap::records<gpuprof_process_v1>(GPUPROF_PROBE_PROCESS).size(), 1u);
    CUfunction function = load_function("a_kernel");
    for (uint64_t i = 0; i < 1000; ++i) launch(function, 100 + i);
    fake_cuda_drain();
    EXPECT_TRUE(shim.wait_until([] { return ProbeTap::execs().size() >= 1000; }));
    const auto launches = ProbeTap::launches();
    const auto execs = ProbeTap::execs();
    ASSERT_EQ(launches.size(), 1000u);
    ASSERT_EQ(execs.size(), 1000u);
    std::set<std::pair<uint32_t, uint32_t>> ids;
    for (const auto& record : launches) {
      EXPECT_TRUE(ids.emplace(record.epoch, record.correlation).second);
      EXPECT_EQ(record.weight_q32, uint64_t{1} << 32);
      EXPECT_EQ(record.kind, static_cast<uint32_t>(GPUPROF_KIND_KERNEL));
      EXPECT_EQ(record.tid, static_cast<uint32_t>(gettid()));
    }
    uint64_t gpu_ns = 0;
    for (const auto& record : execs) {
      EXPECT_EQ(ids.erase({record.epoch, record.correlation}), 1u);
      EXPECT_EQ(record.name_id, launches[0].name_id);
      EXPECT_EQ(record.grid[2], 3u);
      EXPECT_EQ(record.block[0], 32u);
      EXPECT_EQ(record.dynamic_shared_bytes, 64u);
      EXPECT_EQ(record.flags, 0u);
      gpu_ns += record.end_ns - record.start_ns;
    }
    EXPECT_EQ(gpu_ns, 1000u * 100 + 999u * 500);
  }));
}

TEST(CuptiArming, IdleHoldsNoSubscriberAndEmitsNothing) {
  EXPECT_CLEAN(run_target({}, [] {
    start_driver();
    const ShimView shim;
    EXPECT_EQ(shim.status().state, GPUPROF_STATE_IDLE);
    CUfunction function = load_function("k");
    for (int i = 0; i < 100; ++i) launch(function);
    usleep(600'000);
    EXPECT_EQ(totals().subscribes.load(), 0u);
    EXPECT_EQ(totals().callbacks.load(), 0u);
    EXPECT_TRUE(ProbeTap::launches().empty());
    EXPECT_TRUE(ProbeTap::execs().empty());
  }));
}

TEST(CuptiArming, IdleWakesAtMostFiveTimesASecond) {
  EXPECT_CLEAN(run_target({}, [] {
    start_driver();
    const auto switches = [] {
      long sum = -1;
      char line[256];
      for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
        FILE* file = fopen((task.path() / "status").c_str(), "re");
        if (file == nullptr) continue;
        bool ours = false;
        while (fgets(line, sizeof line, file) != nullptr) {
          if (strcmp(line, "Name:\tgpu-profiled\n") == 0) ours = true;
          if (ours) sscanf(line, "voluntary_ctxt_switches: %ld", &sum);
        }
        fclose(file);
      }
      return sum;
    };
    const ShimView shim;
    shim.wait_for_round();
    ASSERT_GE(switches(), 0) << "the service thread was not found";
    const auto seconds = [] { return static_cast<double>(clock_ns()) * 1e-9; };
    // An arm is seen within 300 ms, so five wake-ups take 1.5 s at most, on a machine that has
    // time.
    double fastest = 1e9;
    for (int attempt = 0; attempt < 10 && fastest > 1.5; ++attempt) {
      const long before = switches();
      const double begin = seconds();
      ASSERT_TRUE(shim.wait_until([&] { return switches() - before >= 5; }));
      fastest = std::min(fastest, seconds() - begin);
    }
    EXPECT_LE(fastest, 1.5);
    const long before = switches();
    const double begin = seconds();
    usleep(2'000'000);
    const long wakes = switches() - before;
    EXPECT_LE(static_cast<double>(wakes), 5 * (seconds() - begin) + 1);
  }));
}

TEST(CuptiArming, ArmsLateInALaunchAndDisarms) {
  EXPECT_CLEAN(run_target({}, [] {
    start_driver();
    ShimView shim;
    CUfunction function = load_function("k");
    for (int i = 0; i < 50; ++i) launch(function);
    shim.request(GPUPROF_TIER_TRACE);
    EXPECT_TRUE(shim.wait_for(GPUPROF_STATE_ARMING));
    EXPECT_EQ(totals().enables.load(), 0u) << "activity was enabled without a launch";
    launch(function);
    EXPECT_EQ(shim.status().state, GPUPROF_STATE_TRACING);
    EXPECT_GT(shim.status().epoch, 0u);
    for (int i = 0; i < 200; ++i) launch(function);
    fake_cuda_drain();
    EXPECT_TRUE(shim.wait_until([] { return ProbeTap::execs().size() == 200; }));
    EXPECT_EQ(ProbeTap::launches().size(), 200u);
    shim.release();
    EXPECT_TRUE(shim.wait_for(GPUPROF_STATE_DISARMING));
    EXPECT_EQ(shim.status().reason, GPUPROF_REASON_WAITING_FOR_LAUNCH);
    launch(function);
    EXPECT_TRUE(shim.wait_for(GPUPROF_STATE_IDLE));
    EXPECT_EQ(totals().subscribes.load(), 1u);
    EXPECT_EQ(totals().unsubscribes.load(), 1u);
    EXPECT_EQ(shim.status().disarms, 1u);
    const uint64_t callbacks = totals().callbacks.load();
    for (int i = 0; i < 50; ++i) launch(function);
    EXPECT_EQ(totals().callbacks.load(), callbacks);
    EXPECT_EQ(ProbeTap::launches().size(), 200u);
  }));
}

TEST(CuptiArming, CyclesUnderLoadLoseNothing) {
  EXPECT_CLEAN(run_target(
      {},
      [] {
        start_driver();
        ShimView shim;
        std::atomic<bool> stop{false};
        std::vector<std::thread> threads;
        for (int i = 0; i < 4; ++i) {
          threads.emplace_back([&stop] {
            CUstream stream = nullptr;
            cuStreamCreate(&stream, 0);
            CUfunction function = load_function("loaded");
            while (!stop) launch(function, 200, stream);
          });
        }
        uint32_t epoch = 0;
        for (int cycle = 0; cycle < 12; ++cycle) {
          shim.request(GPUPROF_TIER_TRACE);
          ASSERT_TRUE(shim.wait_for(GPUPROF_STATE_TRACING));
          EXPECT_GT(shim.status().epoch, epoch);
          epoch = shim.status().epoch;
          usleep(20'000);
          shim.release();
          ASSERT_TRUE(shim.wait_for(GPUPROF_STATE_IDLE))
              << shim.status().state << shim.reason_text();
        }
        stop = true;
        for (auto& thread : threads) thread.join();
        EXPECT_EQ(totals().subscribes.load(), 12u);
        EXPECT_EQ(totals().unsubscribes.load(), 12u);
        EXPECT_EQ(shim.status().disarms, 12u);
        // What CUPTI made is what came out, bar what ran when the activity went off.
        uint64_t lost = 0;
        for (const uint64_t total : shim.status().drop_totals) lost += total;
        EXPECT_EQ(ProbeTap::execs().size() + shim.status().drop_totals[GPUPROF_DROP_INCOMPLETE],
                  totals().delivered.load())
            << "drops " << lost;
        // Another change of the page may have put an older number back, until the next heartbeat.
        EXPECT_TRUE(shim.wait_until([&] { return shim.status().buffers_outstanding == 0; }));
      },
      120));
}

TEST(CuptiArming, LeaseOfAnInitArmEndsAfterTwoSeconds) {
  EXPECT_CLEAN(run_target(kArmed, [] {
    const uint64_t begin_ns = clock_ns();  // before the lease begins
    start_driver(false);
    const ShimView shim;
    EXPECT_EQ(shim.status().arms, 1u);
    CUfunction function = load_function("k");
    EXPECT_TRUE(shim.wait_for(GPUPROF_STATE_DISARMING));
    EXPECT_GE(clock_ns() - begin_ns, 2'000'000'000u);
    launch(function);
    EXPECT_TRUE(shim.wait_for(GPUPROF_STATE_IDLE));
    EXPECT_EQ(shim.status().reason, GPUPROF_REASON_LEASE_EXPIRED);
  }));
}

TEST(CuptiArming, AutoarmSemaphoreArmsAtInit) {
  EXPECT_CLEAN(run_target({}, [] {
    ProbeTap::install(GPUPROF_SHIM_FILE);
    ProbeTap::set_semaphore(GPUPROF_PROBE_AUTOARM, 1);
    start_driver();
    const ShimView shim;
    EXPECT_EQ(shim.status().state, GPUPROF_STATE_TRACING);
  }));
}

TEST(CuptiArming, WantedAgainWhileDisarmingStartsANewEpoch) {
  EXPECT_CLEAN(run_target({}, [] {
    start_driver();
    ShimView shim;
    CUfunction function = load_function("k");
    shim.request(GPUPROF_TIER_TRACE);
    ASSERT_TRUE(shim.wait_for(GPUPROF_STATE_TRACING, [&] { launch(function); }));
    const uint32_t epoch = shim.status().epoch;
    shim.release();
    ASSERT_TRUE(shim.wait_for(GPUPROF_STATE_DISARMING));
    shim.request(GPUPROF_TIER_TRACE);
    ASSERT_TRUE(shim.wait_for(GPUPROF_STATE_ARMING));
    // The service thread may still hold the guard: then a later launch enables.
    EXPECT_TRUE(shim.wait_for(GPUPROF_STATE_TRACING, [&] { launch(function); }));
    EXPECT_GT(shim.status().epoch, epoch);
    EXPECT_EQ(totals().subscribes.load(), 1u);
  }));
}

TEST(CuptiArming, AnotherClientIsLeftAloneAndRetried) {
  EXPECT_CLEAN(run_target({{"FAKE_CUDA_OTHER_CLIENT", "1"}}, [] {
    start_driver();
    ShimView shim;
    CUfunction function = load_function("k");
    shim.request(GPUPROF_TIER_TRACE, 20000);
    ASSERT_TRUE(shim.wait_for(GPUPROF_STATE_BUSY, [&] { launch(function); }));
    EXPECT_EQ(shim.status().reason, GPUPROF_REASON_OTHER_CLIENT);
    EXPECT_NE(shim.reason_text().find("another CUPTI client"), std::string::npos);
    EXPECT_EQ(totals().enables.load(), 0u);
    EXPECT_EQ(totals().flushes.load(), 0u);
    fake_cuda_set("other_client", "0");
    EXPECT_TRUE(shim.wait_for(GPUPROF_STATE_TRACING, [&] { launch(function); }));
  }));
}

TEST(CuptiArming, RefusedAtInitIsBusyAndSaysSo) {
  Environment environment = kArmed;
  environment["FAKE_CUDA_SUBSCRIBE_BUSY"] = "1";
  const Outcome outcome = run_target(environment, [] {
    start_driver();
    const ShimView shim;
    EXPECT_EQ(shim.status().state, GPUPROF_STATE_BUSY);
  });
  EXPECT_CLEAN(outcome);
  EXPECT_NE(outcome.error.find("another CUPTI client"), std::string::npos) << outcome.error;
}

TEST(CuptiArming, KernelActivityRefusedBacksOff) {
  EXPECT_CLEAN(run_target({{"FAKE_CUDA_ENABLE_FAIL", "10:14"}}, [] {
    start_driver();
    ShimView shim;
    CUfunction function = load_function("k");
    shim.request(GPUPROF_TIER_TRACE, 20000);
    ASSERT_TRUE(
        shim.wait_until([&] { return shim.status().reason == GPUPROF_REASON_ENABLE_FAILED; },
                        [&] { launch(function); }));
    EXPECT_EQ(shim.status().state, GPUPROF_STATE_IDLE);
    EXPECT_NE(shim.reason_text().find("cuptiActivityEnable answered 14"), std::string::npos);
    shim.release();
    // Once no launch has been seen for a while: no thread is in one.
    EXPECT_TRUE(shim.wait_until([] { return totals().unsubscribes.load() == 1; }));
    fake_cuda_set("enable_fail", "");
    shim.request(GPUPROF_TIER_TRACE);
    EXPECT_TRUE(shim.wait_for(GPUPROF_STATE_TRACING, [&] { launch(function); }));
  }));
}

TEST(CuptiArming, CopyActivityRefusedStillTracesKernels) {
  Environment environment = kArmed;
  environment["FAKE_CUDA_ENABLE_FAIL"] = "1:27,22:27,2:27";
  EXPECT_CLEAN(run_target(environment, [] {
    start_driver();
    const ShimView shim;
    EXPECT_EQ(shim.status().state, GPUPROF_STATE_TRACING);
    EXPECT_EQ(shim.reason_text(),
              "not traced, CUPTI refused MEMCPY (27), MEMCPY2 (27), MEMSET (27)");
    launch(load_function("k"));
    EXPECT_TRUE(shim.wait_until([] { return ProbeTap::execs().size() == 1; }));
  }));
}

TEST(CuptiArming, RegistrationRefusedGivesTheSubscriberBack) {
  EXPECT_CLEAN(run_target({{"FAKE_CUDA_REGISTER_FAIL", "7"}}, [] {
    start_driver();
    ShimView shim;
    shim.request(GPUPROF_TIER_TRACE);
    ASSERT_TRUE(shim.wait_until([&] { return totals().unsubscribes.load() == 1; }));
    EXPECT_EQ(shim.status().state, GPUPROF_STATE_IDLE);
    EXPECT_EQ(shim.status().disarms, 0u);
  }));
}

// The subscriber that CUPTI did not take back is ours still, not another client's.
TEST(CuptiArming, AFailedUnsubscribeKeepsTheSubscriber) {
  EXPECT_CLEAN(run_target({{"FAKE_CUDA_UNSUBSCRIBE_FAIL", "999"}}, [] {
    start_driver();
    ShimView shim;
    CUfunction function = load_function("k");
    for (int cycle = 0; cycle < 3; ++cycle) {
      shim.request(GPUPROF_TIER_TRACE);
      ASSERT_TRUE(shim.wait_for(GPUPROF_STATE_TRACING, [&] { launch(function); }));
      shim.release();
      ASSERT_TRUE(shim.wait_for(GPUPROF_STATE_IDLE, [&] { launch(function); }));
    }
    EXPECT_EQ(totals().subscribes.load(), 1u);
    const uint64_t callbacks = totals().callbacks.load();
    for (int i = 0; i < 50; ++i) launch(function);
    EXPECT_EQ(totals().callbacks.load(), callbacks) << "launch ids are on while idle";
  }));
}

TEST(CuptiArming, NeverInACapturedLaunch) {
  EXPECT_CLEAN(run_target({}, [] {
    start_driver();
    ShimView shim;
    CUfunction function = load_function("k");
    CUstream stream = nullptr;
    ASSERT_EQ(cuStreamCreate(&stream, 0), CUDA_SUCCESS);
    // The capture begins before anybody subscribes: its begin is never seen.
    ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    shim.request(GPUPROF_TIER_TRACE, 20000);
    ASSERT_TRUE(shim.wait_for(GPUPROF_STATE_ARMING));
    for (int i = 0; i < 10; ++i) launch(function, 100, stream);
    EXPECT_EQ(totals().enables.load(), 0u);
    launch(function);  // not captured, but the capture may be a global one
    EXPECT_EQ(totals().enables.load(), 0u);
    CUgraph graph = nullptr;
    ASSERT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    launch(function);
    EXPECT_EQ(shim.status().state, GPUPROF_STATE_TRACING);
    // Disarming waits for the end of a capture as well.
    ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    shim.release();
    ASSERT_TRUE(shim.wait_for(GPUPROF_STATE_DISARMING));
    launch(function, 100, stream);
    launch(function);
    EXPECT_EQ(totals().disables.load(), 0u);
    ASSERT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    launch(function);
    EXPECT_TRUE(shim.wait_for(GPUPROF_STATE_IDLE));
  }));
}

// Seen on an H200: a launch entered while tracing and left while disarming, an earlier capture's
// node passed for its own, and the disarm waited for the end of a capture that did not exist.
TEST(CuptiArming, AnEarlierCaptureDoesNotHoldUpTheDisarm) {
  EXPECT_CLEAN(run_target({{"FAKE_CUDA_QUEUE_NS", "1"}}, [] {
    start_driver();
    ShimView shim;
    CUfunction function = load_function("k");
    CUstream stream = nullptr;
    ASSERT_EQ(cuStreamCreate(&stream, 0), CUDA_SUCCESS);
    for (int cycle = 0; cycle < 10; ++cycle) {
      shim.request(GPUPROF_TIER_TRACE);
      ASSERT_TRUE(shim.wait_for(GPUPROF_STATE_TRACING, [&] { launch(function); }));
      ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
      launch(function, 100, stream);
      CUgraph graph = nullptr;
      ASSERT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
      shim.release();
      // Each launch blocks until the one before it has run, so that as a rule one is inside when
      // the state changes: in ten cycles, one always was.
      ASSERT_TRUE(shim.wait_for(GPUPROF_STATE_IDLE, [&] { launch(function, 3'000'000); }));
    }
  }));
}

TEST(CuptiArming, EagerKeepsTheSubscriber) {
  EXPECT_CLEAN(run_target({{"GPU_PROFILED_SUBSCRIBE", "eager"}}, [] {
    start_driver();
    ShimView shim;
    EXPECT_EQ(shim.status().state, GPUPROF_STATE_IDLE);
    EXPECT_EQ(totals().subscribes.load(), 1u);
    CUfunction function = load_function("k");
    const uint64_t callbacks = totals().callbacks.load();
    launch(function);
    EXPECT_EQ(totals().callbacks.load(), callbacks) << "launch ids are on while idle";
    shim.request(GPUPROF_TIER_TRACE);
    ASSERT_TRUE(shim.wait_for(GPUPROF_STATE_TRACING, [&] { launch(function); }));
    shim.release();
    ASSERT_TRUE(shim.wait_for(GPUPROF_STATE_IDLE, [&] { launch(function); }));
    EXPECT_EQ(totals().unsubscribes.load(), 0u);
  }));
}

TEST(CuptiArming, GraphInstantiatedBeforeTheArmIsTraced) {
  EXPECT_CLEAN(run_target({}, [] {
    start_driver();
    ShimView shim;
    CUfunction function = load_function("node");
    CUstream stream = nullptr;
    ASSERT_EQ(cuStreamCreate(&stream, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    for (int i = 0; i < 10; ++i) launch(function, 100, stream);
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    ASSERT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    ASSERT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
    shim.request(GPUPROF_TIER_TRACE);
    ASSERT_TRUE(shim.wait_for(GPUPROF_STATE_TRACING, [&] { launch(function); }));
    fake_cuda_drain();
    ASSERT_TRUE(shim.wait_until(all_received));
    ProbeTap::clear();
    ASSERT_EQ(cuGraphLaunch(exec, stream), CUDA_SUCCESS);
    fake_cuda_drain();
    EXPECT_TRUE(shim.wait_until([] { return ProbeTap::execs().size() == 10; }));
    const auto launches = ProbeTap::launches();
    ASSERT_EQ(launches.size(), 1u);
    EXPECT_EQ(launches[0].kind, static_cast<uint32_t>(GPUPROF_KIND_GRAPH));
    std::set<uint64_t> nodes;
    for (const auto& record : ProbeTap::execs()) {
      EXPECT_EQ(record.correlation, launches[0].correlation);
      EXPECT_NE(record.graph_id, 0u);
      nodes.insert(record.graph_node);
    }
    EXPECT_EQ(nodes.size(), 10u);
  }));
}

}  // namespace
}  // namespace gpuprof::testing

// SPDX-License-Identifier: Apache-2.0
// The whole shim while the fake CUPTI misbehaves as real ones do: each loss is in exactly one
// class, and nothing of it reaches the application.
#include <cuda.h>
#include <driver_types.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <set>
#include <thread>
#include <vector>

#include "tests/unit/shim/driver_calls.h"
#include "tests/unit/shim/probe_tap.h"
#include "tests/unit/shim/target_process.h"

extern "C" cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t);
extern "C" cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t);

namespace gpuprof::testing {
namespace {

uint64_t drops(const ShimView& shim, gpuprof_drop_class drop_class) {
  return shim.status().drop_totals[drop_class];
}

/// `count` launches, then until everything that CUPTI made has come out or is counted.
void launch_and_settle(const ShimView& shim, int count, int before = 0) {
  CUfunction function = load_function("k");
  for (int i = 0; i < count; ++i) launch(function, 100);
  count += before;
  fake_cuda_drain();
  EXPECT_TRUE(shim.wait_until([&] {
    return ProbeTap::execs().size() + drops(shim, GPUPROF_DROP_INVALID_TIME) +
               drops(shim, GPUPROF_DROP_CUPTI) + drops(shim, GPUPROF_DROP_NO_BUFFER) ==
           static_cast<size_t>(count);
  })) << ProbeTap::execs().size()
      << " executions, dropped " << drops(shim, GPUPROF_DROP_CUPTI);
}

TEST(CuptiFaults, InvalidTimesAreCountedAndNothingElse) {
  EXPECT_CLEAN(run_target(
      armed_with({{"FAKE_CUDA_ZERO_TIMES_EVERY", "10"}, {"FAKE_CUDA_REVERSE_TIMES_EVERY", "15"}}),
      [] {
        start_driver();
        const ShimView shim;
        launch_and_settle(shim, 3000);
        EXPECT_EQ(drops(shim, GPUPROF_DROP_INVALID_TIME),
                  totals().zero_times.load() + totals().reversed.load());
        EXPECT_GT(totals().reversed.load(), 0u);
        for (const auto& record : ProbeTap::execs()) {
          EXPECT_EQ(record.end_ns - record.start_ns, 100u);
        }
      }));
}

TEST(CuptiFaults, RecordsThatCuptiDropsAreCounted) {
  EXPECT_CLEAN(run_target(armed_with({{"FAKE_CUDA_DROP_EVERY", "7"}}), [] {
    start_driver();
    const ShimView shim;
    launch_and_settle(shim, 2100);
    EXPECT_EQ(drops(shim, GPUPROF_DROP_CUPTI), 300u);
  }));
}

TEST(CuptiFaults, LateAndReorderedBuffersLoseNothing) {
  EXPECT_CLEAN(run_target(armed_with({{"FAKE_CUDA_LATE_MS", "50"},
                                      {"FAKE_CUDA_REORDER", "1"},
                                      {"FAKE_CUDA_INSTANT", "1"},
                                      {"FAKE_CUDA_COMPLETE_ON_FLUSHER", "0"}}),
                          [] {
                            start_driver();
                            const ShimView shim;
                            launch_and_settle(shim, 20000);
                            EXPECT_EQ(ProbeTap::execs().size(), 20000u);
                          }));
}

TEST(CuptiFaults, CorrelationWrapKeepsIdsApart) {
  EXPECT_CLEAN(run_target(armed_with({{"FAKE_CUDA_CORRELATION", "4294967000"}}), [] {
    start_driver();
    const ShimView shim;
    launch_and_settle(shim, 2000);
    std::set<std::pair<uint32_t, uint32_t>> launches;
    for (const auto& record : ProbeTap::launches()) {
      EXPECT_TRUE(launches.emplace(record.epoch, record.correlation).second);
    }
    for (const auto& record : ProbeTap::execs()) {
      EXPECT_EQ(launches.erase({record.epoch, record.correlation}), 1u);
      EXPECT_EQ(record.flags & GPUPROF_EXEC_BEFORE_ARM, 0u);
    }
    EXPECT_TRUE(launches.empty());
  }));
}

TEST(CuptiFaults, StepOfCuptisClockKeepsDurations) {
  EXPECT_CLEAN(run_target(armed_with({}), [] {
    start_driver();
    const ShimView shim;
    launch_and_settle(shim, 100);
    fake_cuda_set("clock_step_ns", "5000000000");
    launch_and_settle(shim, 200, 100);
    for (const auto& record : ProbeTap::execs()) EXPECT_EQ(record.end_ns - record.start_ns, 100u);
  }));
}

TEST(CuptiFaults, FailedLaunchesAreNotEmitted) {
  EXPECT_CLEAN(run_target(armed_with({{"FAKE_CUDA_LAUNCH_FAIL_EVERY", "4"}}), [] {
    start_driver();
    const ShimView shim;
    CUfunction function = load_function("k");
    int failed = 0;
    for (int i = 0; i < 400; ++i) {
      failed += cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr) != 0;
    }
    EXPECT_EQ(failed, 100);
    EXPECT_EQ(ProbeTap::launches().size(), 300u);
  }));
}

TEST(CuptiFaults, FlushThatWaitsForCallbacksDoesNotDeadlock) {
  EXPECT_CLEAN(run_target(armed_with({{"FAKE_CUDA_FLUSH_WAITS", "1"}}), [] {
    start_driver();
    ShimView shim;
    shim.request(GPUPROF_TIER_TRACE);
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([] {
        CUfunction function = load_function("k");
        for (int n = 0; n < 3000; ++n) launch(function, 100);
      });
    }
    for (auto& thread : threads) thread.join();
    shim.release();
    CUfunction function = load_function("k");
    EXPECT_TRUE(shim.wait_for(GPUPROF_STATE_IDLE, [&] { launch(function); }));
  }));
}

TEST(CuptiFaults, HungFlushDelaysExitByTwoSecondsAtMost) {
  EXPECT_TRUE(takes_less(3.3 + kSanitizerExitSeconds, [] {
    const Outcome outcome = run_target(armed_with({{"FAKE_CUDA_FLUSH_HANG", "1"}}), [] {
      start_driver();
      const ShimView shim;
      CUfunction function = load_function("k");
      for (int i = 0; i < 100; ++i) launch(function);
      // The service thread is inside FlushAll.
      EXPECT_TRUE(shim.wait_until([] { return totals().flushes.load() > 0; }));
      for (int i = 0; i < 100; ++i) launch(function);
      exit(::testing::Test::HasFailure() ? 1 : 42);
    });
    EXPECT_EQ(outcome.status, 42) << outcome.error;
    EXPECT_GT(outcome.seconds, 1.5) << "the flush did not hang";
    return outcome;
  }));
}

TEST(CuptiFaults, CancelledThreadEndsOutsideOurCallback) {
  EXPECT_CLEAN(run_target(armed_with({{"FAKE_CUDA_CANCEL_AT", "50"}}), [] {
    start_driver();
    const ShimView shim;
    CUfunction function = load_function("k");
    std::thread thread([&] {
      for (int i = 0; i < 100; ++i) launch(function, 100);
      pthread_testcancel();
    });
    thread.join();
    launch(function, 100);
    EXPECT_EQ(shim.status().state, GPUPROF_STATE_TRACING);
  }));
}

TEST(CuptiFaults, ErrnoSurvivesCallbacks) {
  EXPECT_CLEAN(run_target(armed_with({}), [] {
    start_driver();
    CUfunction function = load_function("k");
    errno = 0;
    for (int i = 0; i < 100; ++i) {
      errno = ENOTTY;
      launch(function, 100);
      ASSERT_EQ(errno, ENOTTY);
    }
  }));
}

TEST(CuptiFaults, ForkedChildEmitsNothingAndLeavesTheParentAlone) {
  EXPECT_CLEAN(run_target(armed_with({}), [] {
    start_driver();
    const ShimView shim;
    CUfunction function = load_function("k");
    launch(function, 100);
    const pid_t pid = fork();
    if (pid == 0) {
      ProbeTap::clear();
      cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
      usleep(200'000);
      const bool inherited_page = ShimView().exists();
      exit(ProbeTap::firings().empty() && !inherited_page ? 5 : 6);
    }
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(WEXITSTATUS(status), 5);
    const uint64_t heartbeat = shim.status().heartbeat_ns;
    EXPECT_EQ(shim.status().state, GPUPROF_STATE_TRACING);
    EXPECT_TRUE(shim.wait_until([&] { return shim.status().heartbeat_ns > heartbeat; }));
    launch(function, 100);
    fake_cuda_drain();
    EXPECT_TRUE(shim.wait_until([] { return ProbeTap::execs().size() == 2; }));
  }));
}

TEST(CuptiFaults, ExitFlushesWhatIsLeft) {
  EXPECT_TRUE(takes_less(1.5 + kSanitizerExitSeconds, [] {
    const Outcome outcome = run_target(armed_with({}), [] {
      static ShimView* shim = nullptr;
      std::atexit([] {  // registered before the shim's handler, so it runs after it
        const bool all = ProbeTap::execs().size() == 100 &&
                         shim->status().state == GPUPROF_STATE_INERT &&
                         ProbeTap::drop(GPUPROF_DROP_FINAL_TOTAL) != 0;
        fprintf(stderr, "%zu executions, state %u\n", ProbeTap::execs().size(),
                shim->status().state);
        if (!all) _exit(8);
      });
      start_driver();
      shim = new ShimView;
      CUfunction function = load_function("k");
      for (int i = 0; i < 100; ++i) launch(function, 100);
      fake_cuda_drain();
    });
    EXPECT_CLEAN(outcome);
    return outcome;
  }));
}

// --- older CUPTI
// ----------------------------------------------------------------------------------

TEST(CuptiVersions, Cupti128RecordsOf208Bytes) {
  EXPECT_CLEAN(run_target(armed_with({{"GPU_PROFILED_CUPTI_PATH", FAKE_CUPTI12_DIR}}), [] {
    start_driver();
    const ShimView shim;
    EXPECT_EQ(shim.status().cupti_version, 26u);
    launch_and_settle(shim, 3000);
    EXPECT_EQ(ProbeTap::execs().size(), 3000u);
  }));
}

// 12.3, where disabling activity may deadlock: released and armed again without it.
TEST(CuptiVersions, AnUnmeasuredVersionStaysArmed) {
  EXPECT_CLEAN(run_target(
      armed_with({{"GPU_PROFILED_CUPTI_PATH", FAKE_CUPTI12_DIR}, {"FAKE_CUDA_API", "21"}}), [] {
        start_driver();
        ShimView shim;
        ASSERT_EQ(shim.status().cupti_version, 21u);
        CUfunction function = load_function("k");
        shim.request(GPUPROF_TIER_TRACE);
        launch_and_settle(shim, 100);
        for (int cycle = 1; cycle <= 2; ++cycle) {
          launch(function, 100'000'000);  // still runs when it is released, and is not lost
          shim.release();
          ASSERT_TRUE(shim.wait_for(GPUPROF_STATE_DISARMING));
          EXPECT_EQ(shim.status().reason, GPUPROF_REASON_QUIRK);
          EXPECT_EQ(shim.reason_text(), "not measured: stays armed once armed");
          EXPECT_EQ(shim.status().tier, GPUPROF_TIER_OFF);
          EXPECT_TRUE(shim.wait_until([&] { return ProbeTap::execs().size() >= 101; }));
          EXPECT_EQ(ProbeTap::launches().size(), 101);
          usleep(2'300'000);
          ProbeTap::clear();
          const uint64_t callbacks = totals().callbacks.load();
          const uint64_t delivered = totals().delivered.load();
          for (int i = 0; i < 100; ++i) launch(function, 100);
          fake_cuda_drain();
          EXPECT_TRUE(
              shim.wait_until([&] { return totals().delivered.load() >= delivered + 100; }));
          EXPECT_EQ(totals().callbacks.load(), callbacks);
          EXPECT_TRUE(ProbeTap::launches().empty());
          EXPECT_TRUE(ProbeTap::execs().empty());
          const uint32_t epoch = shim.status().epoch;
          shim.request(GPUPROF_TIER_TRACE, 20000);
          ASSERT_TRUE(shim.wait_for(GPUPROF_STATE_ARMING));
          launch(function, 100);
          EXPECT_EQ(shim.status().state, GPUPROF_STATE_TRACING);
          EXPECT_GT(shim.status().epoch, epoch);
          fake_cuda_drain();
          EXPECT_TRUE(shim.wait_until([] { return ProbeTap::execs().size() == 1; }));
          ProbeTap::clear();
          for (int i = 0; i < 100; ++i) launch(function, 100);
          fake_cuda_drain();
          EXPECT_TRUE(shim.wait_until([] { return ProbeTap::execs().size() == 100; }));
          EXPECT_EQ(ProbeTap::launches().size(), 100u);
        }
        EXPECT_EQ(shim.status().arms, 3u);
        EXPECT_EQ(totals().disables.load(), 0u);
        EXPECT_EQ(totals().unsubscribes.load(), 0u);
        EXPECT_LE(shim.status().buffers_outstanding, 2u);
      }));
}

TEST(CuptiVersions, StayingArmedSwitchesNoIdOnAgain) {
  EXPECT_CLEAN(run_target(armed_with({{"GPU_PROFILED_CUPTI_PATH", FAKE_CUPTI12_DIR},
                                      {"FAKE_CUDA_API", "21"},
                                      {"FAKE_CUDA_NO_DRIVER_LAUNCH", "1"}}),
                          [] {
                            start_driver();
                            ShimView shim;
                            CUfunction function = load_function("k");
                            uint64_t ns = 100;
                            void* arguments[] = {&ns};
                            const auto work = [&] {
                              cudaLaunchKernel(function, dim3(1), dim3(1), arguments, 0, nullptr);
                              cudaMemsetAsync(reinterpret_cast<void*>(64), 0, 1000, nullptr);
                            };
                            for (int i = 0; i < 50; ++i) work();
                            shim.wait_for_round();  // in which the copies' runtime ids follow
                            const uint64_t while_armed = totals().callbacks.load();
                            work();
                            EXPECT_GT(totals().callbacks.load(), while_armed);
                            shim.release();
                            ASSERT_TRUE(shim.wait_for(GPUPROF_STATE_DISARMING));
                            shim.wait_for_round();
                            const uint64_t at_rest = totals().callbacks.load();
                            for (int i = 0; i < 50; ++i) work();
                            EXPECT_EQ(totals().callbacks.load(), at_rest);
                          }));
}

/// CUPTI completes nothing for a while: the pool runs empty, and every record is still accounted
/// for.
void exhaust_the_pool() {
  start_driver();
  const ShimView shim;
  CUfunction function = load_function("k");
  constexpr uint64_t kLaunches = 150'000;  // 31 MB of records; the pool has 18 at most
  for (uint64_t i = 0; i < kLaunches; ++i) launch(function, 1);
  fake_cuda_drain();
  fake_cuda_set("late_ms", "0");
  EXPECT_TRUE(shim.wait_until(
      [&] {
        return ProbeTap::execs().size() + drops(shim, GPUPROF_DROP_NO_BUFFER) +
                   drops(shim, GPUPROF_DROP_CUPTI) ==
               kLaunches;
      },
      {}, 2 * kPatienceMs))
      << ProbeTap::execs().size() << " + " << drops(shim, GPUPROF_DROP_NO_BUFFER) << " + "
      << drops(shim, GPUPROF_DROP_CUPTI);
  EXPECT_GT(drops(shim, GPUPROF_DROP_NO_BUFFER) + drops(shim, GPUPROF_DROP_CUPTI), 0u);
}

TEST(CuptiVersions, EmptyPoolBelow129UsesScratchBuffers) {
  EXPECT_CLEAN(run_target(armed_with({{"GPU_PROFILED_CUPTI_PATH", FAKE_CUPTI12_DIR},
                                      {"FAKE_CUDA_LATE_MS", "100000"},
                                      {"FAKE_CUDA_ALLOW", "buffer-aliased"},  // the shared one
                                      {"FAKE_CUDA_INSTANT", "1"}}),
                          exhaust_the_pool));
}

TEST(CuptiVersions, EmptyPoolFrom129OnAnswersNull) {
  EXPECT_CLEAN(run_target(armed_with({{"FAKE_CUDA_LATE_MS", "100000"}, {"FAKE_CUDA_INSTANT", "1"}}),
                          exhaust_the_pool));
}

}  // namespace
}  // namespace gpuprof::testing

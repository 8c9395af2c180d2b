// SPDX-License-Identifier: Apache-2.0
// PC sampling in a program that cancels threads, forks and exits; and a libcupti without it.
#include <cuda.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <thread>

#include "tests/unit/shim/pc_target.h"

namespace gpuprof::testing {
namespace {

// The very launch that enables sampling is cancelled: an unmasked cancellation point inside ends
// the target at once.
TEST(CuptiPcGuest, ACancelledThreadMayEnableIt) {
  EXPECT_CLEAN(run_target(armed_with({{"FAKE_CUDA_CANCEL_AT", "2"}}), [] {
    Target target;
    target.run();
    target.shim.request(GPUPROF_TIER_CONTINUOUS);
    ASSERT_TRUE(target.shim.wait_until(
        [&] { return target.shim.status().pc_state == GPUPROF_PC_WAITING; }));
    target.shim.wait_for_round();  // memory and devices
    target.shim.wait_for_round();
    std::thread thread([&] {
      target.run();
      pthread_testcancel();
    });
    thread.join();
    EXPECT_EQ(target.shim.status().state, GPUPROF_STATE_TRACING_PC);
    EXPECT_TRUE(target.reach([] { return !samples().empty(); }));
  }));
}

TEST(CuptiPcGuest, ErrnoSurvivesEnableDrainAndDisable) {
  EXPECT_CLEAN(run_target(armed_with(), [] {
    Target target;
    const auto run = [&] {
      errno = ENOTTY;
      target.run();
      EXPECT_EQ(errno, ENOTTY);
    };
    target.shim.request(GPUPROF_TIER_CONTINUOUS);
    ASSERT_TRUE(target.shim.wait_until([] { return samples().size() > 10; }, run));
    target.shim.request(GPUPROF_TIER_TRACE);
    ASSERT_TRUE(target.shim.wait_for(GPUPROF_STATE_TRACING, run));
  }));
}

TEST(CuptiPcGuest, AForkedChildLeavesItAlone) {
  EXPECT_CLEAN(run_target(armed_with(), [] {
    Target target;
    ASSERT_TRUE(target.sample()) << target.why();
    const pid_t pid = fork();
    if (pid == 0) {
      ProbeTap::clear();
      cuLaunchKernel(target.function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
      usleep(200'000);
      exit(ProbeTap::firings().empty() ? 5 : 6);
    }
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(WEXITSTATUS(status), 5);
    EXPECT_EQ(target.shim.status().state, GPUPROF_STATE_TRACING_PC);
    EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_DISABLES), 0u);
    ProbeTap::clear();
    EXPECT_TRUE(target.reach([] { return !samples().empty(); }));
  }));
}

TEST(CuptiPcGuest, AMissingFunctionIsNamed) {
  const std::string directory = cupti_without({"cuptiPCSamplingStop"});
  EXPECT_CLEAN(run_target(armed_with({{"GPU_PROFILED_CUPTI_PATH", directory}}), [] {
    Target target;
    ASSERT_TRUE(target.refused());
    EXPECT_EQ(target.shim.status().pc_reason, GPUPROF_PC_REASON_MISSING_SYMBOL);
    EXPECT_NE(target.why().find("cuptiPCSamplingStop"), std::string::npos) << target.why();
    EXPECT_EQ(target.shim.status().state, GPUPROF_STATE_TRACING);
  }));
}

TEST(CuptiPcGuest, DrainsThatKeepFailingEndIt) {
  EXPECT_CLEAN(run_target(armed_with(), [] {
    Target target;
    ASSERT_TRUE(target.sample()) << target.why();
    fake_cuda_set("pc_fail", "5:999");
    ASSERT_TRUE(target.reach([&] { return target.shim.status().pc_state == GPUPROF_PC_REFUSED; }));
    EXPECT_EQ(target.shim.status().pc_reason, GPUPROF_PC_REASON_FAILED);
    EXPECT_EQ(drops(target.shim, GPUPROF_DROP_PC_LOST_DRAINS), 10u);
    EXPECT_EQ(target.shim.status().state, GPUPROF_STATE_TRACING);
    fake_cuda_set("pc_fail", "");
    EXPECT_TRUE(target.reach(GPUPROF_STATE_TRACING_PC)) << "it is tried again";
  }));
}

}  // namespace
}  // namespace gpuprof::testing

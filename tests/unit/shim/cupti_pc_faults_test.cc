// SPDX-License-Identifier: Apache-2.0
// PC sampling that CUPTI refuses, that runs out of memory, and what is lost; on the fake driver.
// Whatever happens to it, tracing goes on.
#include <cuda.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <ostream>
#include <string>
#include <thread>

#include "tests/unit/shim/pc_target.h"

namespace gpuprof::testing {
namespace {

struct Refusal {
  const char* answer;  // pc_fail
  gpuprof_pc_reason reason;
  const char* advice;
};

/// For the test's name, which would be the struct's bytes.
void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.answer; }

class CuptiPcRefused : public ::testing::TestWithParam<Refusal> {};

TEST_P(CuptiPcRefused, NamesTheCauseAndWhatToChange) {
  const Refusal& refusal = GetParam();
  EXPECT_CLEAN(run_target(armed_with({{"FAKE_CUDA_PC_FAIL", refusal.answer}}), [&] {
    Target target;
    ASSERT_TRUE(target.refused());
    EXPECT_EQ(target.shim.status().pc_reason, static_cast<uint32_t>(refusal.reason));
    EXPECT_NE(target.why().find(refusal.advice), std::string::npos) << target.why();
    EXPECT_EQ(target.shim.status().state, GPUPROF_STATE_TRACING);
    EXPECT_EQ(target.shim.status().tier, GPUPROF_TIER_TRACE);
    EXPECT_EQ(target.shim.status().pc_contexts, 0u);
    ProbeTap::clear();
    target.run();
    EXPECT_EQ(ProbeTap::launches().size(), 1u) << "tracing stopped";
    EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_ENABLES), 0u);
    target.shim.request(GPUPROF_TIER_TRACE);
    EXPECT_TRUE(target.reach([&] { return target.shim.status().pc_state == GPUPROF_PC_OFF; }));
    EXPECT_EQ(target.shim.status().pc_reason, GPUPROF_PC_REASON_NONE);
  }));
}

TEST(CuptiPcFaults, WithoutPerfworksItSaysSo) {
  EXPECT_CLEAN(run_target(armed_with({{"FAKE_CUDA_PC_NO_PERFWORKS", "1"}}), [] {
    Target target;
    ASSERT_TRUE(target.refused());
    EXPECT_EQ(target.shim.status().pc_reason, GPUPROF_PC_REASON_FAILED);
    EXPECT_NE(target.why().find("libnvperf_host.so"), std::string::npos) << target.why();
    EXPECT_EQ(target.shim.status().state, GPUPROF_STATE_TRACING);
    ProbeTap::clear();
    target.run();
    EXPECT_EQ(ProbeTap::launches().size(), 1u) << "tracing stopped";
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Answers, CuptiPcRefused,
    ::testing::Values(
        Refusal{"1:35", GPUPROF_PC_REASON_PRIVILEGE, "NVreg_RestrictProfilingToAdminUsers=0"},
        Refusal{"1:26", GPUPROF_PC_REASON_COUNTERS_BUSY, "dcgmi profile --pause"},
        Refusal{"1:14", GPUPROF_PC_REASON_COUNTERS_BUSY, "debugger"},
        Refusal{"1:33", GPUPROF_PC_REASON_VGPU, "vGPU"},
        Refusal{"1:40", GPUPROF_PC_REASON_VGPU, "vGPU"},
        Refusal{"1:41", GPUPROF_PC_REASON_CONFIDENTIAL, "confidential"},
        Refusal{"1:43", GPUPROF_PC_REASON_MIG, "MIG"},
        Refusal{"1:45", GPUPROF_PC_REASON_WSL, "WSL"},
        Refusal{"1:38", GPUPROF_PC_REASON_GPU_TOO_OLD, "compute capability"},
        Refusal{"1:8", GPUPROF_PC_REASON_OUT_OF_MEMORY, "memory"},
        Refusal{"1:999", GPUPROF_PC_REASON_FAILED, "cuptiPCSamplingEnable answered 999"},
        Refusal{"6:7", GPUPROF_PC_REASON_FAILED, "configuring PC sampling answered 7"},
        Refusal{"7:7", GPUPROF_PC_REASON_FAILED, "reading the sampling period answered 7"},
        Refusal{"8:7", GPUPROF_PC_REASON_FAILED, "reading the stall reasons answered 7"}));

struct Attribute {
  int type;
  const char* step;
};
void PrintTo(const Attribute& attribute, std::ostream* out) { *out << attribute.step; }

class CuptiPcAttribute : public ::testing::TestWithParam<Attribute> {};

// The call as a whole succeeds: only the attribute's own status tells.
TEST_P(CuptiPcAttribute, ARefusedAttributeIsSeen) {
  const std::string fault = std::to_string(GetParam().type) + ":7";
  EXPECT_CLEAN(run_target(armed_with({{"FAKE_CUDA_PC_ATTRIBUTE_FAIL", fault}}), [] {
    Target target;
    ASSERT_TRUE(target.refused());
    EXPECT_EQ(target.shim.status().pc_reason, GPUPROF_PC_REASON_FAILED);
    EXPECT_NE(target.why().find(GetParam().step), std::string::npos) << target.why();
    // It was disabled again: nothing is left on that would be in the way.
    fake_cuda_set("pc_attribute_fail", "");
    target.shim.request(GPUPROF_TIER_TRACE);
    ASSERT_TRUE(target.reach([&] { return target.shim.status().pc_state == GPUPROF_PC_OFF; }));
    EXPECT_TRUE(target.sample()) << target.why();
  }));
}

INSTANTIATE_TEST_SUITE_P(Types, CuptiPcAttribute,
                         ::testing::Values(Attribute{1, "period"}, Attribute{4, "hardware buffer"},
                                           Attribute{5, "collection mode"},
                                           Attribute{8, "data buffer"}));

TEST(CuptiPcFaults, TheReasonOutlivesTheProcess) {
  EXPECT_CLEAN(run_target(armed_with({{"FAKE_CUDA_PC_FAIL", "1:35"}}), [] {
    static Target* target = nullptr;
    atexit([] {  // runs after the shim's handler
      if (target->shim.status().state != GPUPROF_STATE_INERT) _exit(11);
      if (target->shim.status().pc_reason != GPUPROF_PC_REASON_PRIVILEGE) _exit(12);
      if (target->why().find("CAP_SYS_ADMIN") == std::string::npos) _exit(13);
    });
    target = new Target;
    EXPECT_TRUE(target->refused());
  }));
}

TEST(CuptiPcFaults, BusyCountersAreTriedAgain) {
  EXPECT_CLEAN(run_target(armed_with({{"FAKE_CUDA_PC_FAIL", "1:26"}}), [] {
    Target target;
    ASSERT_TRUE(target.refused());
    fake_cuda_set("pc_fail", "");
    ASSERT_TRUE(target.reach(GPUPROF_STATE_TRACING_PC)) << target.why();
    EXPECT_EQ(target.shim.status().pc_reason, GPUPROF_PC_REASON_NONE);
    EXPECT_EQ(target.why(), "");
  }));
}

// Another process samples the GPU: CUPTI traces nothing after that start (H200), and nothing
// brought it back. The shim says so and leaves CUPTI alone (the fake sees to it), whatever is asked
// of it.
TEST(CuptiPcFaults, AfterABusyStartNoCallIsMade) {
  for (const gpuprof_tier tier : {GPUPROF_TIER_CONTINUOUS, GPUPROF_TIER_SERIALIZED}) {
    EXPECT_CLEAN(run_target(armed_with({{"FAKE_CUDA_PC_FAIL", "3:26"}}), [tier] {
      Target target;
      ASSERT_TRUE(target.refused(tier));
      ASSERT_TRUE(target.reach(GPUPROF_STATE_INERT));
      EXPECT_EQ(target.shim.status().reason, static_cast<uint32_t>(GPUPROF_REASON_QUIRK));
      EXPECT_NE(std::string(target.shim.status().reason_text).find("restart the process"),
                std::string::npos);
      EXPECT_EQ(target.shim.status().pc_reason,
                static_cast<uint32_t>(GPUPROF_PC_REASON_COUNTERS_BUSY));
      EXPECT_NE(target.why().find("one process at a time"), std::string::npos) << target.why();
      EXPECT_EQ(target.shim.status().pc_contexts, 0u);
      EXPECT_NE(target.shim.status().off_since_ns, 0u) << "the gap is told";
      target.shim.release();
      for (int i = 0; i < 100; ++i) target.run();
      target.shim.request(tier);
      for (int i = 0; i < 100; ++i) target.run();
    }));
  }
}

TEST(CuptiPcFaults, UnderMpsAnUnspecificAnswerIsExplained) {
  char pattern[] = "/tmp/gpuprof-mps-XXXXXX";
  const std::string pipe = mkdtemp(pattern);
  std::ofstream(pipe + "/control") << "";
  const Environment environment =
      armed_with({{"FAKE_CUDA_PC_FAIL", "1:999"}, {"CUDA_MPS_PIPE_DIRECTORY", pipe}});
  EXPECT_CLEAN(run_target(environment, [] {
    Target target;
    ASSERT_TRUE(target.refused());
    EXPECT_EQ(target.shim.status().pc_reason, GPUPROF_PC_REASON_MPS);
  }));
  unlink((pipe + "/control").c_str());
  rmdir(pipe.c_str());
}

TEST(CuptiPcFaults, BelowApi27NoCallIsMade) {
  EXPECT_CLEAN(run_target(armed_with({{"GPU_PROFILED_CUPTI_PATH", FAKE_CUPTI12_DIR}}), [] {
    Target target;
    ASSERT_EQ(target.shim.status().cupti_version, 26u);
    ASSERT_TRUE(target.refused());
    EXPECT_EQ(target.shim.status().pc_reason, GPUPROF_PC_REASON_CUPTI_TOO_OLD);
    EXPECT_NE(target.why().find("26"), std::string::npos);
    EXPECT_EQ(target.shim.status().state, GPUPROF_STATE_TRACING);
  }));
}

TEST(CuptiPcFaults, AnOldGpuIsNotAsked) {
  EXPECT_CLEAN(run_target(armed_with({{"FAKE_CUDA_CC", "61"}}), [] {
    Target target;
    ASSERT_TRUE(target.refused());
    EXPECT_EQ(target.shim.status().pc_reason, GPUPROF_PC_REASON_GPU_TOO_OLD);
    EXPECT_NE(target.why().find("6.1"), std::string::npos) << target.why();
  }));
}

// sm_120: a period or a buffer of ours would end all samples (the fake does as the GPU did).
TEST(CuptiPcFaults, OnCompute12TheDefaultsStay) {
  EXPECT_CLEAN(run_target(armed_with({{"FAKE_CUDA_CC", "120"}}), [] {
    Target target;
    ASSERT_TRUE(target.sample()) << target.why();
    EXPECT_EQ(target.shim.status().pc_period, 17u) << "CUPTI's own, read back";
    EXPECT_TRUE(target.reach([] { return !samples().empty(); }));
    target.shim.request(GPUPROF_TIER_CONTINUOUS, GPUPROF_LEASE_MS_MAX, UINT32_MAX, 14);
    EXPECT_TRUE(target.reach([&] { return target.shim.status().pc_period == 14; })) << "asked for";
  }));
}

// As long as CUPTI samples it refuses kernel activity: an H200 did after a refused Disable.
TEST(CuptiPcFaults, ARefusedDisableIsTriedAgainAtTheNextArm) {
  EXPECT_CLEAN(run_target(armed_with(), [] {
    Target target;
    ASSERT_TRUE(target.sample()) << target.why();
    fake_cuda_set("pc_fail", "2:1");
    target.shim.release();
    ASSERT_TRUE(target.reach(GPUPROF_STATE_IDLE));
    target.shim.request(GPUPROF_TIER_TRACE);
    const auto says_why = [&] {
      return std::string(target.shim.status().reason_text).find("restart the process") !=
             std::string::npos;
    };
    ASSERT_TRUE(target.reach(says_why)) << target.shim.status().reason_text;
    fake_cuda_set("pc_fail", "");
    ASSERT_TRUE(target.reach(GPUPROF_STATE_TRACING)) << target.shim.status().reason_text;
    EXPECT_TRUE(target.sample()) << target.why();
  }));
}

TEST(CuptiPcFaults, ARefusedDisableIsNotTriedForEver) {
  EXPECT_CLEAN(run_target(armed_with({{"FAKE_CUDA_PC_FAIL", "2:1"}}), [] {
    Target target;
    ASSERT_TRUE(target.sample()) << target.why();
    target.shim.release();
    ASSERT_TRUE(target.reach(GPUPROF_STATE_IDLE));
    for (int arm = 0; arm < 4; ++arm) {  // two answers at the release, one at each arm
      target.shim.request(GPUPROF_TIER_TRACE);
      ASSERT_TRUE(target.reach(
          [&] { return target.shim.status().reason == GPUPROF_REASON_ENABLE_FAILED; }));
      target.shim.release();
      ASSERT_TRUE(
          target.reach([&] { return target.shim.status().reason == GPUPROF_REASON_RELEASED; }));
    }
    fake_cuda_set("pc_fail", "");
    target.shim.request(GPUPROF_TIER_TRACE);
    EXPECT_TRUE(target.reach([&] {
      return target.shim.status().reason == GPUPROF_REASON_ENABLE_FAILED;
    })) << "given up after five";
  }));
}

/// The advice that a context which could not be switched off is worth, at an arm that fails.
bool blames_a_stuck_context(Target& target) {
  target.shim.release();
  EXPECT_TRUE(target.reach(GPUPROF_STATE_IDLE)) << target.shim.status().reason_text;
  fake_cuda_set("enable_fail", "10:7");
  target.shim.request(GPUPROF_TIER_TRACE);
  EXPECT_TRUE(
      target.reach([&] { return target.shim.status().reason == GPUPROF_REASON_ENABLE_FAILED; }));
  return std::string(target.shim.status().reason_text).find("restart the process") !=
         std::string::npos;
}

TEST(CuptiPcFaults, AStuckContextIsForgottenWithTheContext) {
  EXPECT_CLEAN(run_target(armed_with({{"FAKE_CUDA_PC_FAIL", "2:1"}}), [] {
    Target target;
    ASSERT_TRUE(target.sample()) << target.why();
    CUcontext sampled = nullptr, other = nullptr;
    ASSERT_EQ(cuCtxGetCurrent(&sampled), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxCreate_v4(&other, nullptr, 0, 0), CUDA_SUCCESS);
    cuCtxSetCurrent(sampled);
    target.shim.request(GPUPROF_TIER_TRACE);  // nothing of PC sampling is wanted from here on
    ASSERT_TRUE(target.reach(GPUPROF_STATE_TRACING));
    ASSERT_EQ(cuCtxDestroy_v2(sampled), CUDA_SUCCESS);
    cuCtxSetCurrent(other);
    EXPECT_FALSE(blames_a_stuck_context(target)) << target.shim.status().reason_text;
  }));
}

// An enable on another GPU has the Guard for longer than the callback of the destroyed one tries.
TEST(CuptiPcFaults, AStuckContextThatGoesBesideAnEnableIsForgotten) {
  EXPECT_CLEAN(
      run_target(armed_with({{"FAKE_CUDA_PC_FAIL", "2:1"}, {"FAKE_CUDA_DEVICES", "2"}}), [] {
        Target target;
        CUcontext stuck = nullptr, second = nullptr;
        ASSERT_EQ(cuCtxGetCurrent(&stuck), CUDA_SUCCESS);
        ASSERT_EQ(cuDevicePrimaryCtxRetain(&second, 1), CUDA_SUCCESS);
        ASSERT_TRUE(target.sample()) << target.why();
        // Another period needs a disable, which is refused, and the enable after it too.
        target.shim.request(GPUPROF_TIER_CONTINUOUS, GPUPROF_LEASE_MS_MAX, UINT32_MAX, 12);
        ASSERT_TRUE(
            target.reach([&] { return target.shim.status().pc_state == GPUPROF_PC_REFUSED; }));
        const uint64_t skipped = counter(target.shim, GPUPROF_PC_COUNT_SKIPPED_GUARD);
        fake_cuda_set("pc_enable_ms", "3000");
        std::thread enabling([&] {
          cuCtxSetCurrent(second);
          EXPECT_TRUE(target.reach([&] { return target.shim.status().pc_contexts == 1; }));
        });
        // A thread's first launch looks, and cannot have the Guard.
        const auto look = [&] {
          std::thread([&] {
            cuCtxSetCurrent(stuck);
            target.run();
          }).join();
        };
        EXPECT_TRUE(target.shim.wait_until(
            [&] { return counter(target.shim, GPUPROF_PC_COUNT_SKIPPED_GUARD) >= skipped + 20; },
            look));
        EXPECT_EQ(cuCtxDestroy_v2(stuck), CUDA_SUCCESS);
        enabling.join();
        fake_cuda_set("pc_fail", "");
        cuCtxSetCurrent(second);
        EXPECT_FALSE(blames_a_stuck_context(target)) << target.shim.status().reason_text;
      }));
}

TEST(CuptiPcFaults, OutOfMemoryHeals) {
  EXPECT_CLEAN(run_target(armed_with({{"FAKE_CUDA_PC_OOM_AT", "4"}}), [] {
    Target target;
    ASSERT_TRUE(target.sample()) << target.why();
    ASSERT_TRUE(target.reach([&] { return counter(target.shim, GPUPROF_PC_COUNT_HEALED) == 1; }));
    EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_ENABLES), 2u);
    EXPECT_EQ(drops(target.shim, GPUPROF_DROP_PC_LOST_DRAINS), 1u);
    EXPECT_EQ(drops(target.shim, GPUPROF_DROP_HW_BUFFER_FULL), 1u);
    ProbeTap::clear();
    EXPECT_TRUE(target.reach([] { return !samples().empty(); })) << "no samples after it";
    EXPECT_EQ(target.shim.status().state, GPUPROF_STATE_TRACING_PC);
    EXPECT_EQ(target.shim.status().pc_period, 20u);
  }));
}

// Found by the service thread, which may not switch anything: the next launch heals it.
TEST(CuptiPcFaults, OutOfMemoryInAnIdleProgramHealsInItsNextLaunch) {
  EXPECT_CLEAN(run_target(armed_with(), [] {
    Target target;
    ASSERT_TRUE(target.sample()) << target.why();
    fake_cuda_set("pc_oom", "1");
    ASSERT_TRUE(target.shim.wait_until(
        [&] { return drops(target.shim, GPUPROF_DROP_PC_LOST_DRAINS) >= 1; }));
    fake_cuda_set("pc_oom", "0");
    EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_HEALED), 0u);
    EXPECT_TRUE(target.reach([&] { return counter(target.shim, GPUPROF_PC_COUNT_HEALED) == 1; }));
  }));
}

TEST(CuptiPcFaults, OutOfMemoryTwiceAfterANewEnableIsOff) {
  EXPECT_CLEAN(run_target(armed_with({{"FAKE_CUDA_PC_OOM", "1"}}), [] {
    Target target;
    ASSERT_TRUE(target.refused());
    EXPECT_EQ(target.shim.status().pc_reason, GPUPROF_PC_REASON_OUT_OF_MEMORY);
    EXPECT_NE(target.why().find("--pc-period"), std::string::npos) << target.why();
    EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_HEALED), 2u);
    EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_ENABLES), 3u);
    EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_DISABLES), 3u);
    EXPECT_EQ(target.shim.status().state, GPUPROF_STATE_TRACING);
    EXPECT_EQ(windows().size(), 6u);
    // Not by itself, but when it is asked for again.
    fake_cuda_set("pc_oom", "0");
    target.shim.request(GPUPROF_TIER_TRACE);
    ASSERT_TRUE(target.reach([&] { return target.shim.status().pc_state == GPUPROF_PC_OFF; }));
    EXPECT_TRUE(target.sample()) << target.why();
  }));
}

TEST(CuptiPcFaults, LossesHaveTheirClasses) {
  EXPECT_CLEAN(run_target(armed_with({{"FAKE_CUDA_PC_DROP_EVERY", "10"}}), [] {
    Target target;
    ASSERT_TRUE(target.sample(GPUPROF_TIER_CONTINUOUS, 12)) << target.why();
    ASSERT_TRUE(target.shim.wait_until(
        [&] {
          return drops(target.shim, GPUPROF_DROP_PC_DROPPED) != 0 &&
                 drops(target.shim, GPUPROF_DROP_NON_USER) != 0;
        },
        [&] {
          target.run();
          cuMemsetD8Async(0x1000, 0, 1 << 20, nullptr);
        }));
    target.shim.release();
    ASSERT_TRUE(target.reach(GPUPROF_STATE_IDLE));
    const uint64_t kept = sums().stalled;
    const uint64_t lost = drops(target.shim, GPUPROF_DROP_PC_DROPPED);
    EXPECT_NEAR(static_cast<double>(lost), static_cast<double>(kept + lost) / 10, 2.0);
  }));
}

TEST(CuptiPcFaults, AFatalErrorEndsEverythingQuietly) {
  EXPECT_CLEAN(run_target(armed_with(), [] {
    Target target;
    ASSERT_TRUE(target.sample()) << target.why();
    fake_cuda_set("fatal_error", "1");
    target.run();
    EXPECT_EQ(target.shim.status().state, GPUPROF_STATE_INERT);
    EXPECT_NE(target.shim.status().off_since_ns, 0u) << "the gap is told";
    EXPECT_EQ(target.shim.status().pc_state, GPUPROF_PC_OFF);
    for (int i = 0; i < 100; ++i) target.run();
    target.shim.request(GPUPROF_TIER_CONTINUOUS);
  }));
}

}  // namespace
}  // namespace gpuprof::testing

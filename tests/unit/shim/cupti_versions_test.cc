// SPDX-License-Identifier: Apache-2.0
// Which callback ids are on when: by version, and what switching one off at the wrong time does.
#include <cuda.h>
#include <driver_types.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "tests/unit/shim/driver_calls.h"
#include "tests/unit/shim/probe_tap.h"
#include "tests/unit/shim/target_process.h"

extern "C" cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t);
extern "C" cudaError_t cudaMemcpyAsync(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t);
extern "C" cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t);

namespace gpuprof::testing {
namespace {

void runtime_launch(CUfunction function) {
  uint64_t ns = 100;
  void* arguments[] = {&ns};
  EXPECT_EQ(cudaLaunchKernel(function, dim3(1), dim3(1), arguments, 0, nullptr), cudaSuccess);
}

/// Runtime ids are in use: each launch, copy and fill comes once.
void expect_each_once(const ShimView& shim, CUfunction function) {
  shim.wait_for_round();  // in which the runtime ids follow
  fake_cuda_drain();
  EXPECT_TRUE(shim.wait_until([] { return ProbeTap::execs().size() == totals().queued.load(); }));
  ProbeTap::clear();
  for (int i = 0; i < 100; ++i) runtime_launch(function);
  cudaMemcpyAsync(reinterpret_cast<void*>(64), reinterpret_cast<void*>(128), 2500,
                  cudaMemcpyDeviceToDevice, nullptr);
  cudaMemsetAsync(reinterpret_cast<void*>(64), 0, 1000, nullptr);
  fake_cuda_drain();
  EXPECT_TRUE(shim.wait_until([] { return ProbeTap::execs().size() == 102; }));
  std::set<uint32_t> launches;
  for (const auto& record : ProbeTap::launches()) {
    EXPECT_TRUE(launches.insert(record.correlation).second) << "a launch was emitted twice";
  }
  for (const auto& record : ProbeTap::execs()) EXPECT_EQ(launches.erase(record.correlation), 1u);
  EXPECT_TRUE(launches.empty());
}

void attach_where_driver_callbacks_are_missing() {
  start_driver();
  ShimView shim;
  CUfunction function = load_function("k");
  shim.request(GPUPROF_TIER_TRACE);
  ASSERT_TRUE(shim.wait_for(GPUPROF_STATE_TRACING, [&] { runtime_launch(function); }));
  expect_each_once(shim, function);
}

TEST(CuptiVersions, Cupti118OnANewerDriverUsesTheRuntimesAlone) {
  EXPECT_CLEAN(run_target({{"GPU_PROFILED_CUPTI_PATH", FAKE_CUPTI118_DIR}},
                          attach_where_driver_callbacks_are_missing));
}

TEST(CuptiVersions, MissingDriverCallbacksAreNoticedByTheRuntimes) {
  EXPECT_CLEAN(run_target(
      {{"GPU_PROFILED_CUPTI_PATH", FAKE_CUPTI12_DIR}, {"FAKE_CUDA_NO_DRIVER_LAUNCH", "1"}},
      attach_where_driver_callbacks_are_missing));
}

// From 13.0 on by the kernels that nobody launched: the runtime ids cannot be tried.
TEST(CuptiVersions, MissingDriverCallbacksAreNoticedByTheKernels) {
  EXPECT_CLEAN(run_target(armed_with({{"FAKE_CUDA_NO_DRIVER_LAUNCH", "1"}}), [] {
    start_driver();
    const ShimView shim;
    CUfunction function = load_function("k");
    EXPECT_TRUE(shim.wait_until([] { return !ProbeTap::launches().empty(); },
                                [&] { runtime_launch(function); }));
    expect_each_once(shim, function);
  }));
}

/// Callbacks of 100 runtime launches once everything has settled; each is recorded once.
uint64_t callbacks_of_100(const ShimView& shim) {
  CUfunction function = load_function("k");
  for (int i = 0; i < 100; ++i) runtime_launch(function);
  shim.wait_for_round();
  const uint64_t before = totals().callbacks.load();
  for (int i = 0; i < 100; ++i) runtime_launch(function);
  const uint64_t made = totals().callbacks.load() - before;
  fake_cuda_drain();
  EXPECT_TRUE(shim.wait_until([] { return ProbeTap::execs().size() == 200; }));
  EXPECT_EQ(ProbeTap::launches().size(), 200u);
  return made;
}

TEST(CuptiVersions, RuntimeIdsGoOffOnceTheRuleHolds) {
  EXPECT_CLEAN(run_target(armed_with({{"GPU_PROFILED_CUPTI_PATH", FAKE_CUPTI12_DIR}}), [] {
    start_driver();
    const ShimView shim;
    EXPECT_EQ(callbacks_of_100(shim), 200u) << "enter and exit of the driver call";
  }));
}

// A runtime id that goes off while a thread is in its call spoils that thread on 13.0.
TEST(CuptiVersions, RuntimeIdsAreNeverOnWhereTheyStick) {
  EXPECT_CLEAN(run_target(armed_with({}), [] {
    start_driver();
    const ShimView shim;
    CUfunction function = load_function("k");
    const uint64_t before = totals().callbacks.load();
    runtime_launch(function);
    EXPECT_EQ(totals().callbacks.load() - before, 2u)
        << "enter and exit of the driver call, from the first";
    fake_cuda_drain();
    EXPECT_TRUE(shim.wait_until([] { return ProbeTap::execs().size() == 1; }));
    ProbeTap::clear();
    EXPECT_EQ(callbacks_of_100(shim), 200u);
  }));
}

TEST(CuptiVersions, RuntimeIdsOf118StayOn) {
  EXPECT_CLEAN(run_target({{"GPU_PROFILED_CUPTI_PATH", FAKE_CUPTI118_DIR}}, [] {
    start_driver();
    ShimView shim;
    CUfunction function = load_function("k");
    for (int cycle = 0; cycle < 2; ++cycle) {
      ProbeTap::clear();
      shim.request(GPUPROF_TIER_TRACE, 20000);
      ASSERT_TRUE(shim.wait_for(GPUPROF_STATE_TRACING, [&] { runtime_launch(function); }));
      shim.release();
      ASSERT_TRUE(shim.wait_for(GPUPROF_STATE_IDLE, [&] { runtime_launch(function); }));
      const uint64_t callbacks = totals().callbacks.load();
      const size_t launches = ProbeTap::launches().size();
      for (int i = 0; i < 100; ++i) runtime_launch(function);
      EXPECT_EQ(totals().callbacks.load() - callbacks, 200u) << "no driver callbacks on 11.8";
      EXPECT_EQ(ProbeTap::launches().size(), launches);
    }
    EXPECT_EQ(totals().unsubscribes.load(), 0u);
    EXPECT_EQ(totals().subscribes.load(), 1u);
  }));
}

/// Nobody wants the profile any more while a launch is under way that no activity was on for.
void cancel_inside_a_launch() {
  start_driver();
  ShimView shim;
  CUfunction function = load_function("k");
  launch(function, 4'000'000'000);  // the stream is full until it ends
  shim.request(GPUPROF_TIER_TRACE, 20000);
  ASSERT_TRUE(shim.wait_for(GPUPROF_STATE_ARMING));
  const uint64_t callbacks = totals().callbacks.load();
  std::thread inside([&] { launch(function, 100); });
  EXPECT_TRUE(shim.wait_until([&] { return totals().callbacks.load() > callbacks; }));
  shim.release();
  usleep(1'300'000);  // longer than what passes for quiet
  EXPECT_EQ(shim.status().state, GPUPROF_STATE_ARMING);
  EXPECT_EQ(totals().unsubscribes.load(), 0u);
  inside.join();  // its exit arms, and what follows disarms
  EXPECT_TRUE(shim.wait_for(GPUPROF_STATE_IDLE, [&] { launch(function, 100); }));
  EXPECT_EQ(totals().unsubscribes.load(), 1u);
  EXPECT_EQ(shim.status().arms, 1u);
}

TEST(CuptiVersions, NoIdGoesOffInsideALaunchBeforeTheFirstActivity) {
  EXPECT_CLEAN(run_target({}, cancel_inside_a_launch));
}

TEST(CuptiVersions, IdsGoOffWhenNoLaunchIsUnderWay) {
  EXPECT_CLEAN(run_target({}, [] {
    start_driver();
    ShimView shim;
    CUfunction function = load_function("k");
    CUstream stream = nullptr;
    ASSERT_EQ(cuStreamCreate(&stream, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    shim.request(GPUPROF_TIER_TRACE, 20000);
    ASSERT_TRUE(shim.wait_for(GPUPROF_STATE_ARMING));
    launch(function, 100, stream);  // captured: it does not arm
    shim.release();
    EXPECT_TRUE(shim.wait_for(GPUPROF_STATE_IDLE));
    EXPECT_EQ(totals().unsubscribes.load(), 1u);
    EXPECT_EQ(shim.status().arms, 0u);
  }));
}

// kArming is left for kIdle with the ids on where activity was refused.
TEST(CuptiVersions, IdsLeftOnAfterARefusalGoOffLater) {
  EXPECT_CLEAN(run_target({{"FAKE_CUDA_ENABLE_FAIL", "10:1"}}, [] {
    start_driver();
    ShimView shim;
    CUfunction function = load_function("k");
    shim.request(GPUPROF_TIER_TRACE, 20000);
    EXPECT_TRUE(
        shim.wait_until([&] { return shim.status().reason == GPUPROF_REASON_ENABLE_FAILED; },
                        [&] { launch(function, 100); }));
    shim.release();
    EXPECT_TRUE(shim.wait_until([] { return totals().unsubscribes.load() == 1; }));
    EXPECT_EQ(shim.status().state, GPUPROF_STATE_IDLE);
  }));
}

// Threads that enter a launch in one phase and leave it in another are not counted for ever.
TEST(CuptiVersions, ARefusalOnBusyThreadsLeavesNoCallBehind) {
  EXPECT_CLEAN(run_target({{"FAKE_CUDA_ENABLE_FAIL", "10:1"}}, [] {
    start_driver();
    ShimView shim;
    CUfunction function = load_function("k");
    CUcontext context = nullptr;
    ASSERT_EQ(cuCtxGetCurrent(&context), CUDA_SUCCESS);
    for (uint64_t round = 1; round <= 4; ++round) {
      std::atomic<bool> stop{false};
      std::vector<std::thread> busy;
      for (int i = 0; i < 3; ++i) {
        busy.emplace_back([&] {
          cuCtxSetCurrent(context);
          while (!stop.load()) launch(function, 100);
        });
      }
      shim.request(GPUPROF_TIER_TRACE, 20000);
      EXPECT_TRUE(
          shim.wait_until([&] { return shim.status().reason == GPUPROF_REASON_ENABLE_FAILED; }));
      shim.release();
      stop = true;
      for (std::thread& thread : busy) thread.join();
      EXPECT_TRUE(shim.wait_until([&] { return totals().unsubscribes.load() == round; }));
      EXPECT_TRUE(shim.wait_until([&] { return shim.status().reason == GPUPROF_REASON_RELEASED; }));
    }
  }));
}

}  // namespace
}  // namespace gpuprof::testing

// SPDX-License-Identifier: Apache-2.0
// PC sampling of the GPUs that the controller grants, and of no other (docs/adr/0020).
#include <cuda.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/unit/shim/pc_target.h"

namespace gpuprof::testing {
namespace {

/// The fake's `number`th GPU.
gpuprof_gpu_uuid gpu(uint32_t number) {
  gpuprof_gpu_uuid uuid = {};
  for (uint32_t i = 0; i < sizeof uuid.bytes; ++i)
    uuid.bytes[i] = static_cast<uint8_t>(0x10 * (number + 1) + i);
  return uuid;
}

uint64_t serial_of(const ShimView& shim) {
  return __atomic_load_n(&shim.status().pc_grant_serial, __ATOMIC_ACQUIRE);
}
uint32_t wanted(const ShimView& shim) {
  return __atomic_load_n(&shim.status().pc_wanted, __ATOMIC_ACQUIRE);
}
uint32_t held(const ShimView& shim) {
  return __atomic_load_n(&shim.status().pc_held, __ATOMIC_ACQUIRE);
}

/// A target whose controller has granted `gpus` as grant 7 and has asked for `tier`.
struct Granted : Target {
  explicit Granted(const std::vector<gpuprof_gpu_uuid>& gpus,
                   gpuprof_tier tier = GPUPROF_TIER_CONTINUOUS) {
    shim.grant(7, gpus);
    shim.request(tier);
  }
  [[nodiscard]] bool wants(uint32_t gpus) const {
    return reach([&] { return wanted(shim) == gpus && serial_of(shim) == 7; });
  }
};

TEST(CuptiPcGrants, AGpuIsWantedThenGrantedThenTakenAway) {
  EXPECT_CLEAN(run_target(armed_with(), [] {
    Granted target({});
    ASSERT_TRUE(target.wants(1));
    for (int i = 0; i < 50; ++i) target.run();
    const gpuprof_status_page& page = target.shim.status();
    EXPECT_EQ(page.state, GPUPROF_STATE_TRACING);
    EXPECT_EQ(page.pc_state, GPUPROF_PC_WAITING);
    EXPECT_EQ(page.pc_reason, GPUPROF_PC_REASON_GPU_TAKEN);
    EXPECT_NE(target.why().find("GPU 0"), std::string::npos) << target.why();
    EXPECT_EQ(page.pc_grant_modes, 2u);
    EXPECT_EQ(0, memcmp(page.pc_gpus[0].bytes, gpu(0).bytes, sizeof gpu(0).bytes));
    EXPECT_EQ(held(target.shim), 0u);
    EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_ENABLES), 0u);

    target.shim.grant(8, {gpu(3), gpu(0)});
    ASSERT_TRUE(target.reach(GPUPROF_STATE_TRACING_PC)) << target.why();
    EXPECT_EQ(serial_of(target.shim), 8u);
    EXPECT_EQ(held(target.shim), 1u);
    EXPECT_EQ(wanted(target.shim), 0u);
    EXPECT_EQ(page.pc_reason, GPUPROF_PC_REASON_NONE);
    ASSERT_TRUE(target.reach([] { return !samples().empty(); }));

    target.shim.grant(9, {gpu(3)});
    ASSERT_TRUE(target.reach([&] { return wanted(target.shim) == 1; }));
    EXPECT_EQ(serial_of(target.shim), 9u);
    EXPECT_EQ(held(target.shim), 0u);
    EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_DISABLES), 1u);
    EXPECT_EQ(windows().size(), 2u);
    EXPECT_EQ(page.state, GPUPROF_STATE_TRACING);

    target.shim.release();
    ASSERT_TRUE(target.reach(GPUPROF_STATE_IDLE));
    ASSERT_TRUE(target.reach([&] { return serial_of(target.shim) == 0; }));
    EXPECT_EQ(wanted(target.shim), 0u);
  }));
}

TEST(CuptiPcGrants, EachGpuByItself) {
  EXPECT_CLEAN(
      run_target(armed_with({{"FAKE_CUDA_DEVICES", "2"}, {"FAKE_CUDA_FIRST_GPU", "4"}}), [] {
        Granted target({gpu(5)});
        CUcontext first = nullptr, second = nullptr;
        ASSERT_EQ(cuCtxGetCurrent(&first), CUDA_SUCCESS);
        ASSERT_EQ(cuDevicePrimaryCtxRetain(&second, 1), CUDA_SUCCESS);
        ASSERT_TRUE(target.shim.wait_until(
            [&] { return held(target.shim) == 2 && wanted(target.shim) == 1; },
            [&] {
              target.run();
              cuCtxSetCurrent(second);
              target.run();
              cuCtxSetCurrent(first);
            }));
        EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_ENABLES), 1u);
        EXPECT_EQ(target.shim.status().pc_contexts, 1u);
      }));
}

// It would take the GPU from the process that works there.
TEST(CuptiPcGrants, AContextInWhichNothingIsLaunchedWantsNothing) {
  EXPECT_CLEAN(run_target(armed_with({{"FAKE_CUDA_DEVICES", "2"}}), [] {
    Granted target({});
    ASSERT_TRUE(target.wants(1));
    CUcontext working = nullptr, idle = nullptr;
    ASSERT_EQ(cuCtxGetCurrent(&working), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxCreate_v4(&idle, nullptr, 0, 1), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(working), CUDA_SUCCESS);
    for (int i = 0; i < 50; ++i) target.run();
    target.shim.wait_for_round();
    EXPECT_EQ(wanted(target.shim), 1u);
  }));
}

// What nobody will use keeps no GPU from others.
TEST(CuptiPcGrants, NeitherARefusedGpuNorADestroyedContextIsWanted) {
  EXPECT_CLEAN(run_target(armed_with({{"FAKE_CUDA_PC_FAIL", "1:35"}}), [] {
    Granted target({});
    ASSERT_TRUE(target.wants(1));
    target.shim.grant(8, {gpu(0)});
    ASSERT_TRUE(target.reach(
        [&] { return target.shim.status().pc_reason == GPUPROF_PC_REASON_PRIVILEGE; }));
    EXPECT_EQ(wanted(target.shim), 0u);
    EXPECT_EQ(held(target.shim), 0u);
  }));
  EXPECT_CLEAN(run_target(armed_with({{"FAKE_CUDA_DEVICES", "2"}}), [] {
    Granted target({});
    CUcontext first = nullptr, second = nullptr;
    ASSERT_EQ(cuCtxGetCurrent(&first), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxCreate_v4(&second, nullptr, 0, 1), CUDA_SUCCESS);
    const CUfunction function = load_function("other");
    ASSERT_TRUE(target.shim.wait_until([&] { return wanted(target.shim) == 3; },
                                       [&] {
                                         launch(function);
                                         cuCtxSetCurrent(first);
                                         target.run();
                                         cuCtxSetCurrent(second);
                                       }));
    ASSERT_EQ(cuCtxDestroy_v2(second), CUDA_SUCCESS);
    cuCtxSetCurrent(first);
    EXPECT_EQ(wanted(target.shim), 0u);
    ASSERT_TRUE(target.reach([&] { return wanted(target.shim) == 1; }));
  }));
}

TEST(CuptiPcGrants, SerializedToo) {
  EXPECT_CLEAN(run_target(armed_with(), [] {
    Granted target({}, GPUPROF_TIER_SERIALIZED);
    ASSERT_TRUE(target.wants(1));
    EXPECT_EQ(counter(target.shim, GPUPROF_PC_COUNT_ENABLES), 0u);
    target.shim.grant(8, {gpu(0)});
    ASSERT_TRUE(target.reach([] { return !samples().empty(); })) << target.why();
    EXPECT_EQ(held(target.shim), 1u);
    target.shim.grant(9, {});
    ASSERT_TRUE(target.reach([&] { return held(target.shim) == 0; }));
    const uint64_t opened = counter(target.shim, GPUPROF_PC_COUNT_WINDOWS);
    EXPECT_EQ(windows().size(), 2 * opened) << "a window is left open";
  }));
}

}  // namespace
}  // namespace gpuprof::testing

// SPDX-License-Identifier: Apache-2.0
// The whole shim on the fake driver: what it emits, and the states it goes through.
#include <cuda.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <set>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/unit/shim/probe_tap.h"
#include "tests/unit/shim/target_process.h"

namespace gpuprof::testing {
namespace {

CUfunction load_function(const char* name) {
  CUmodule module = nullptr;
  EXPECT_EQ(cuModuleLoadData(&module, "ptx"), CUDA_SUCCESS);
  CUfunction function = nullptr;
  EXPECT_EQ(cuModuleGetFunction(&function, module, name), CUDA_SUCCESS);
  return function;
}

void launch(CUfunction function, uint64_t duration_ns = 1000, CUstream stream = nullptr) {
  void* params[] = {&duration_ns};
  EXPECT_EQ(cuLaunchKernel(function, 1, 2, 3, 32, 1, 1, 64, stream, params, nullptr), CUDA_SUCCESS);
}

const Environment kArmed = {{"GPU_PROFILED_ARM", "trace"}, {"GPU_PROFILED_STACK_RATE", "all"}};

TEST(CuptiArming, ArmedAtInitEmitsEveryLaunchAndExecution) {
  EXPECT_CLEAN(run_target(kArmed, [] {
    start_driver();
    const ShimView shim;
    ASSERT_TRUE(shim.exists());
    EXPECT_EQ(shim.status().state, GPUPROF_STATE_TRACING) << shim.reason_text();
    ASSERT_EQ(ProbeTap::records<gpuprof_process_v1>(GPUPROF_PROBE_PROCESS).size(), 1u);
    CUfunction function = load_function("a_kernel");
    for (int i = 0; i < 1000; ++i) launch(function, 100 + i);
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

}  // namespace
}  // namespace gpuprof::testing

// SPDX-License-Identifier: Apache-2.0
// The rules of PC sampling, each broken on purpose.
#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <thread>

#include "tests/unit/fake_cuda/pc_client.h"

namespace fakecuda {
namespace {

using testing::ExitedWithCode;

class PcRules : public testing::Test {
 protected:
  void SetUp() override { testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

#define EXPECT_VIOLATION(rule, ...) expect_exit(99, "violation " rule, [] { __VA_ARGS__ })

/// Enabled, configured, and started where `control`.
void sampling(CUfunction f, PcClient& pc, uint32_t mode = 1, bool control = true) {
  in_launch_exit(f, [&] {
    REQUIRE(pc.enable() == CUPTI_SUCCESS && pc.configure(12, mode, control) == CUPTI_SUCCESS);
    REQUIRE(!control || pc.begin() == CUPTI_SUCCESS);
  });
}

size_t calls_back() {
  std::lock_guard lock(client().mutex);
  return client().callbacks.size();
}

TEST_F(PcRules, StopAndDisableBesideALaunchingApp) {
  EXPECT_VIOLATION("pc-thread: cuptiPCSamplingStop", start(); PcClient pc;
                   sampling(function("k"), pc); std::thread([&] { pc.stop(); }).join(););
  EXPECT_VIOLATION("pc-thread: cuptiPCSamplingDisable", start(); PcClient pc;
                   sampling(function("k"), pc); std::thread([&] { pc.disable(); }).join(););
  EXPECT_VIOLATION("pc-thread: cuptiPCSamplingStart", start(); PcClient pc;
                   CUfunction f = function("k"); sampling(f, pc);
                   in_launch_exit(f, [&] { REQUIRE(pc.stop() == CUPTI_SUCCESS); });
                   std::thread([&] { pc.begin(); }).join(););
}

TEST_F(PcRules, DisableOfASamplerThatRuns) {
  EXPECT_VIOLATION("pc-disable-running", start(); CUfunction f = function("k"); PcClient pc;
                   sampling(f, pc); in_launch_exit(f, [&] { pc.disable(); }););
  EXPECT_VIOLATION("pc-disable-running", start(); CUfunction f = function("k"); PcClient pc;
                   sampling(f, pc, 1, false); launch(f); in_launch_exit(f, [&] { pc.disable(); }););
}

TEST_F(PcRules, ABusyStartMakesCuptiDeaf) {
  EXPECT_VIOLATION("after-busy-start: cuptiActivityFlushAll", start(); CUfunction f = function("k");
                   PcClient pc; fake_cuda_set("pc_fail", "3:26");
                   in_launch_exit(f,
                                  [&] {
                                    REQUIRE(pc.enable() == CUPTI_SUCCESS &&
                                            pc.configure(12, 1, true) == CUPTI_SUCCESS);
                                    REQUIRE(pc.begin() == CUPTI_ERROR_HARDWARE_BUSY);
                                  });
                   const size_t before = calls_back(); launch(f); REQUIRE(calls_back() == before);
                   cuptiActivityFlushAll(0););
}

TEST_F(PcRules, GetDataIsAllowedAnywhere) {
  EXPECT_EXIT(
      {
        start();
        PcClient pc;
        sampling(function("k"), pc);
        std::thread([&] { REQUIRE(pc.drain() == CUPTI_SUCCESS); }).join();
        finish();
      },
      ExitedWithCode(0), "");
}

TEST_F(PcRules, InALaunchThatIsCaptured) {
  EXPECT_VIOLATION("captured", start(); CUfunction f = function("k"); CUstream stream = nullptr;
                   cuStreamCreate(&stream, 0);
                   cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL); PcClient pc;
                   in_launch_exit(
                       f, [&] { pc.enable(); }, stream););
}

TEST_F(PcRules, KernelsThatWaitForEachOtherInASerializedWindow) {
  EXPECT_VIOLATION("serialized-deadlock", start(); PcClient pc; sampling(function("k"), pc, 2);
                   launch(function("_Z29ncclDevKernel_AllReduce_Sum_f32")););
  EXPECT_VIOLATION("serialized-deadlock", start(); PcClient pc; CUfunction f = function("k");
                   sampling(f, pc, 2);
                   cuLaunchCooperativeKernel(f, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr););
  EXPECT_EXIT(
      {
        start();
        PcClient pc;
        CUfunction f = function("k");
        sampling(f, pc, 2);
        in_launch_exit(f, [&] { REQUIRE(pc.stop() == CUPTI_SUCCESS); });
        launch(function("ncclDevKernel_AllReduce"));
        finish();
      },
      ExitedWithCode(0), "");
}

void reload(bool drain) {
  setenv("FAKE_CUDA_QUEUE_NS", "1000", 1);
  start();
  CUmodule module = nullptr;
  CUfunction f = nullptr;
  REQUIRE(cuModuleLoadData(&module, "ptx") == CUDA_SUCCESS);
  REQUIRE(cuModuleGetFunction(&f, module, "k") == CUDA_SUCCESS);
  cuptiEnableCallback(1, client().subscriber, CUPTI_CB_DOMAIN_RESOURCE,
                      CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING);
  static PcClient* pc = new PcClient;
  sampling(f, *pc, 1, false);
  launch(f, 1'000'000);
  fake_cuda_drain();
  if (drain) {
    client().on_resource = [](CUpti_CallbackId id) {
      if (id == CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING) REQUIRE(pc->drain() == CUPTI_SUCCESS);
    };
  }
  cuModuleUnload(module);
  function("another");
  REQUIRE(!drain || pc->samples() > 1000);
  finish();
}

TEST_F(PcRules, AModuleGoesUndrained) {
  EXPECT_EXIT(reload(false), ExitedWithCode(99), "violation module-undrained");
  EXPECT_EXIT(reload(true), ExitedWithCode(0), "");
}

TEST_F(PcRules, GetDataIntoTheBufferThatIsCuptis) {
  EXPECT_VIOLATION("pc-buffer", start(); PcClient pc; sampling(function("k"), pc);
                   pc.register_buffer(&pc.data); pc.drain(););
}

TEST_F(PcRules, GetDataWithoutABufferThatIsCuptis) {
  EXPECT_VIOLATION("pc-no-buffer", start(); PcClient pc; pc.registers = false;
                   sampling(function("k"), pc); pc.drain(););
}

/// GPU 1 is sampled by another process; ours is `first_gpu`.
void second_sampler(const char* first_gpu, bool control) {
  const std::string locks = "rules-" + std::to_string(getpid());
  setenv("FAKE_CUDA_GPU_LOCKS", locks.c_str(), 1);
  setenv("FAKE_CUDA_FIRST_GPU", first_gpu, 1);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const std::string text = "fake-cuda/" + locks + "/1";
  memcpy(name.sun_path + 1, text.data(), text.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  const int other = socket(AF_UNIX, SOCK_STREAM, 0);
  REQUIRE(bind(other, reinterpret_cast<const sockaddr*>(&name), size) == 0);
  start();
  PcClient pc;
  CUfunction f = function("k");
  const bool own = strcmp(first_gpu, "1") != 0;
  in_launch_exit(f, [&] {
    REQUIRE(pc.enable() == CUPTI_SUCCESS && pc.configure(12, 1, control) == CUPTI_SUCCESS);
    if (control) REQUIRE(pc.begin() == (own ? CUPTI_SUCCESS : CUPTI_ERROR_HARDWARE_BUSY));
  });
  bool called = false;
  launch(f);
  in_launch_exit(f, [&] { called = true; });
  REQUIRE(called == own);
  finish();
}

TEST_F(PcRules, OneProcessSamplesAGpu) {
  EXPECT_EXIT(second_sampler("1", true), ExitedWithCode(99), "violation second-sampler");
  EXPECT_EXIT(second_sampler("1", false), ExitedWithCode(99), "violation second-sampler");
  EXPECT_EXIT(second_sampler("2", true), ExitedWithCode(0), "");
}

void both_kinds(const char* api, const char* driver, bool pc_first) {
  setenv("FAKE_CUDA_API", api, 1);
  setenv("FAKE_CUDA_DRIVER", driver, 1);
  start();
  PcClient pc;
  CUptiResult second = CUPTI_SUCCESS;
  in_launch_exit(function("k"), [&] {
    if (pc_first) REQUIRE(pc.enable() == CUPTI_SUCCESS);
    second = cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    if (!pc_first) second = pc.enable();
  });
  _exit(second == CUPTI_SUCCESS ? 0 : static_cast<int>(second));
}

TEST_F(PcRules, KernelActivityBesidePcSampling) {
  EXPECT_EXIT(both_kinds("130001", "13000", false), ExitedWithCode(0), "");
  EXPECT_EXIT(both_kinds("130001", "13000", true), ExitedWithCode(14), "");
  EXPECT_EXIT(both_kinds("26", "12080", false), ExitedWithCode(14), "");
  EXPECT_EXIT(both_kinds("27", "12090", false), ExitedWithCode(0), "");
}

}  // namespace
}  // namespace fakecuda

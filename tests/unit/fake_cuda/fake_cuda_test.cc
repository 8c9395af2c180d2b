// SPDX-License-Identifier: Apache-2.0
#include <driver_types.h>

#include <fstream>
#include <sstream>

#include "tests/unit/fake_cuda/client.h"

extern "C" cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t);

namespace fakecuda {
namespace {

using testing::ExitedWithCode;

class FakeCuda : public testing::Test {
 protected:
  void SetUp() override { testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

void enable_at_idle() {
  REQUIRE(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) == CUPTI_SUCCESS);
}

TEST_F(FakeCuda, RecordOnlyWhileTheKindIsEnabled) {
  EXPECT_EXIT(
      {
        start();
        CUfunction f = function("k");
        launch(f);
        usleep(60'000);  // "while the app launches" is over
        enable_at_idle();
        launch(f, 1234);
        fake_cuda_drain();
        usleep(60'000);
        REQUIRE(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) == CUPTI_SUCCESS);
        launch(f);
        fake_cuda_drain();
        REQUIRE(cuptiActivityFlushAll(0) == CUPTI_SUCCESS);
        REQUIRE(client().records.size() == 1);
        const Record& r = client().records[0];
        REQUIRE(r.end - r.start == 1234 && r.name == "k" && r.start != 0);
        // Enter and exit of the second launch carry the id that its record has.
        REQUIRE(client().callbacks.size() == 6);
        REQUIRE(client().callbacks[2].correlation == r.correlation);
        REQUIRE(client().callbacks[3].correlation == r.correlation);
        REQUIRE(client().callbacks[3].site == CUPTI_API_EXIT &&
                client().callbacks[2].symbol == "k");
        REQUIRE(cuptiUnsubscribe(client().subscriber) == CUPTI_SUCCESS);
        finish();
      },
      ExitedWithCode(0), "");
}

TEST_F(FakeCuda, CallbackOnlyForAnEnabledId) {
  EXPECT_EXIT(
      {
        start(true, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz);
        launch(function("k"));
        REQUIRE(client().callbacks.empty());
        finish();
      },
      ExitedWithCode(0), "");
}

TEST_F(FakeCuda, RuntimeAndNestedDriverCallShareTheId) {
  EXPECT_EXIT(
      {
        setenv("FAKE_CUDA_CORRELATION", "4294967290", 1);
        start();
        REQUIRE(cuptiEnableCallback(1, client().subscriber, CUPTI_CB_DOMAIN_RUNTIME_API,
                                    CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000) ==
                CUPTI_SUCCESS);
        CUfunction f = function("k");
        client().callbacks.clear();
        for (int i = 0; i < 8; ++i) {
          uint64_t ns = 10;
          void* params[] = {&ns};
          REQUIRE(cudaLaunchKernel(f, dim3(1), dim3(1), params, 0, nullptr) == cudaSuccess);
        }
        REQUIRE(client().callbacks.size() == 32);
        for (size_t i = 0; i < 32; ++i) {
          REQUIRE(client().callbacks[i].correlation == client().callbacks[i / 4 * 4].correlation);
        }
        // Module loading took one id; the counter wraps on the way.
        REQUIRE(client().callbacks[0].correlation == 4294967292u);
        REQUIRE(client().callbacks[31].correlation == 3);
        finish();
      },
      ExitedWithCode(0), "");
}

void expect_stride(const char* api, size_t kernel, size_t copy) {
  setenv("FAKE_CUDA_API", api, 1);
  setenv("FAKE_CUDA_DRIVER", "12080", 1);  // 11.8 makes driver callbacks on a driver of its time
  if (atoi(api) >= 130000) setenv("FAKE_CUDA_DRIVER", "13000", 1);
  start();
  uint32_t version = 0;
  REQUIRE(cuptiGetVersion(&version) == CUPTI_SUCCESS &&
          version == static_cast<uint32_t>(atoi(api)));
  enable_at_idle();
  REQUIRE(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY) == CUPTI_SUCCESS);
  CUfunction f = function("k");
  launch(f);
  launch(f);
  REQUIRE(cuMemcpyDtoDAsync(64, 128, 2500, nullptr) == CUDA_SUCCESS);
  launch(f);
  fake_cuda_drain();
  REQUIRE(cuptiActivityFlushAll(0) == CUPTI_SUCCESS);
  const auto& r = client().records;
  REQUIRE(r.size() == 4 && r[2].kind == CUPTI_ACTIVITY_KIND_MEMCPY &&
          r[2].end - r[2].start == 1100);
  REQUIRE(r[1].offset == kernel && r[2].offset == 2 * kernel && r[3].offset == 2 * kernel + copy);
  finish();
}

TEST_F(FakeCuda, StridesOf118) { EXPECT_EXIT(expect_stride("18", 200, 88), ExitedWithCode(0), ""); }
TEST_F(FakeCuda, StridesOf123) { EXPECT_EXIT(expect_stride("21", 208, 88), ExitedWithCode(0), ""); }
TEST_F(FakeCuda, StridesOf128) { EXPECT_EXIT(expect_stride("26", 208, 96), ExitedWithCode(0), ""); }
TEST_F(FakeCuda, StridesOf130) {
  EXPECT_EXIT(expect_stride("130001", 216, 96), ExitedWithCode(0), "");
}

TEST_F(FakeCuda, CapturedLaunchesRunOnlyAsGraphNodes) {
  EXPECT_EXIT(
      {
        start();
        REQUIRE(cuptiEnableCallback(1, client().subscriber, CUPTI_CB_DOMAIN_DRIVER_API,
                                    CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch) == CUPTI_SUCCESS);
        enable_at_idle();
        CUfunction f = function("k");
        CUstream stream = nullptr;
        REQUIRE(cuStreamCreate(&stream, 0) == CUDA_SUCCESS);
        REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
        for (int i = 0; i < 10; ++i) launch(f, 100, stream);
        CUgraph graph = nullptr;
        REQUIRE(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
        fake_cuda_drain();
        cuptiActivityFlushAll(0);
        REQUIRE(client().records.empty());
        CUgraphExec exec = nullptr;
        REQUIRE(cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
        REQUIRE(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
        fake_cuda_drain();
        cuptiActivityFlushAll(0);
        const auto& r = client().records;
        REQUIRE(r.size() == 10);
        for (const Record& node : r) {
          REQUIRE(node.correlation == client().callbacks.back().correlation && node.graph_id != 0);
        }
        REQUIRE(r[0].graph_node != r[1].graph_node);
        finish();
      },
      ExitedWithCode(0), "");
}

TEST_F(FakeCuda, HashCallbackSeesTheImageWithoutASubscriber) {
  EXPECT_EXIT(
      {
        start(false);
        static std::string seen;
        REQUIRE(cuptiRegisterComputeCrcCallback([](const void* image, size_t size, uint64_t* key) {
                  seen.assign(static_cast<const char*>(image), size);
                  *key = 1;
                }) == CUPTI_SUCCESS);
        function("k");
        REQUIRE(seen == std::string("ptx", 4));
        finish();
      },
      ExitedWithCode(0), "");
}

TEST_F(FakeCuda, FaultsAreCountedInTheTruth) {
  EXPECT_EXIT(
      {
        setenv("FAKE_CUDA_INSTANT", "1", 1);
        setenv("FAKE_CUDA_DROP_EVERY", "10", 1);
        setenv("FAKE_CUDA_ZERO_TIMES_EVERY", "9", 1);
        start();
        enable_at_idle();
        CUfunction f = function("k");
        fake_cuda_label("main;work");
        for (int i = 0; i < 1000; ++i) launch(f, 50);
        cuptiActivityFlushAll(0);
        size_t dropped = 0;
        cuptiActivityGetNumDroppedRecords(nullptr, 0, &dropped);
        REQUIRE(dropped == 100 && client().records.size() == 900);
        size_t zero = 0;
        for (const Record& r : client().records) zero += r.start == 0;
        REQUIRE(zero == 100);
        const std::string path = "/tmp/fake_cuda_truth." + std::to_string(getpid());
        REQUIRE(fake_cuda_write_truth(path.c_str()) == 0);
        std::stringstream truth;
        truth << std::ifstream(path).rdbuf();
        unlink(path.c_str());
        REQUIRE(truth.str().find("\"delivered\":900,\"dropped\":100,\"zero_times\":100") !=
                std::string::npos);
        REQUIRE(truth.str().find(
                    "{\"stack\":[\"main\",\"work\"],\"kind\":\"kernel\",\"kernel\":\"k\"") !=
                std::string::npos);
        REQUIRE(
            truth.str().find("\"executions\":1000,\"gpu_ns\":50000,\"recorded_executions\":1000") !=
            std::string::npos);
        finish();
      },
      ExitedWithCode(0), "");
}

TEST_F(FakeCuda, SubscribeIsRefusedForAWhile) {
  EXPECT_EXIT(
      {
        setenv("FAKE_CUDA_SUBSCRIBE_BUSY", "2", 1);
        start(false);
        CUpti_SubscriberHandle handle = nullptr;
        REQUIRE(cuptiSubscribe(&handle, on_callback, nullptr) ==
                CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
        REQUIRE(cuptiSubscribe(&handle, on_callback, nullptr) == 39);
        REQUIRE(cuptiSubscribe(&handle, on_callback, nullptr) == CUPTI_SUCCESS);
        finish();
      },
      ExitedWithCode(0), "");
}

TEST_F(FakeCuda, KeyedFailuresHitTheirTarget) {
  EXPECT_EXIT(
      {
        setenv("FAKE_CUDA_ENABLE_FAIL", "1:7,10:14", 1);
        setenv("FAKE_CUDA_CALLBACK_FAIL", "1:514:1", 1);
        start();
        REQUIRE(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) == 14);
        REQUIRE(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY) == 7);
        REQUIRE(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMSET) == CUPTI_SUCCESS);
        REQUIRE(cuptiEnableCallback(1, client().subscriber, CUPTI_CB_DOMAIN_DRIVER_API, 514) == 1);
        finish();
      },
      ExitedWithCode(0), "");
}

TEST_F(FakeCuda, NotInitialisedBeforeCuInit) {
  EXPECT_EXIT(
      {
        CUmodule module = nullptr;
        REQUIRE(cuModuleLoadData(&module, "ptx") == CUDA_ERROR_NOT_INITIALIZED);
        int version = 0;
        REQUIRE(cuDriverGetVersion(&version) == CUDA_SUCCESS && version == 13000);
        finish();
      },
      ExitedWithCode(0), "");
}

}  // namespace
}  // namespace fakecuda

// SPDX-License-Identifier: Apache-2.0
// Each rule of the fake, broken on purpose: status 99 and the rule's name on stderr.
#include <pthread.h>
#include <sys/wait.h>

#include <thread>

#include "tests/unit/fake_cuda/client.h"

namespace fakecuda {
namespace {

using testing::ExitedWithCode;

class Rules : public testing::Test {
 protected:
  void SetUp() override { testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

#define EXPECT_VIOLATION(rule, body) \
  EXPECT_EXIT({ body finish(); }, ExitedWithCode(99), "violation " rule)

TEST_F(Rules, ForbiddenKinds) {
  for (const auto kind : {CUPTI_ACTIVITY_KIND_KERNEL, CUPTI_ACTIVITY_KIND_GRAPH_TRACE,
                          CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER}) {
    EXPECT_VIOLATION("forbidden-kind", {
      start();
      cuptiActivityEnable(kind);
    });
  }
}

TEST_F(Rules, ActivityToggledBesideALaunchingApp) {
  EXPECT_VIOLATION("activity-thread", {
    start();
    launch(function("k"));
    std::thread([] { cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL); }).join();
  });
}

TEST_F(Rules, ActivityToggledInALaunchEnterCallback) {
  EXPECT_VIOLATION("activity-thread", {
    start();
    client().on_callback = [](CUpti_CallbackDomain, CUpti_CallbackId,
                              const CUpti_CallbackData& call) {
      if (call.callbackSite == CUPTI_API_ENTER) cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMSET);
    };
    launch(function("k"));
  });
}

TEST_F(Rules, ActivityToggledInALaunchExitCallbackIsFine) {
  EXPECT_EXIT(
      {
        start();
        client().on_callback = [](CUpti_CallbackDomain, CUpti_CallbackId,
                                  const CUpti_CallbackData& call) {
          if (call.callbackSite == CUPTI_API_EXIT) cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMSET);
        };
        launch(function("k"));
        finish();
      },
      ExitedWithCode(0), "");
}

TEST_F(Rules, ActivityToggledDuringCapture) {
  EXPECT_VIOLATION("captured", {
    start();
    CUstream stream = nullptr;
    cuStreamCreate(&stream, 0);
    cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    client().on_callback = [](CUpti_CallbackDomain, CUpti_CallbackId,
                              const CUpti_CallbackData& call) {
      if (call.callbackSite == CUPTI_API_EXIT) cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMSET);
    };
    launch(function("k"), 10, stream);
  });
}

TEST_F(Rules, PcSamplingBesideALaunchingApp) {
  EXPECT_VIOLATION("pc-thread", {
    start();
    launch(function("k"));
    std::thread([] {
      CUcontext context = nullptr;
      cuDevicePrimaryCtxRetain(&context, 0);
      CUpti_PCSamplingEnableParams params{CUpti_PCSamplingEnableParamsSize, nullptr, context};
      cuptiPCSamplingEnable(&params);
    }).join();
  });
}

TEST_F(Rules, Finalize) {
  EXPECT_VIOLATION("finalize", {
    start();
    cuptiFinalize();
  });
}

TEST_F(Rules, WholeResourceDomain) {
  EXPECT_VIOLATION("resource-domain", {
    start();
    cuptiEnableDomain(1, client().subscriber, CUPTI_CB_DOMAIN_RESOURCE);
  });
}

TEST_F(Rules, TwoThreadsInsideCupti) {
  EXPECT_VIOLATION("two-threads", {
    setenv("FAKE_CUDA_FLUSH_HANG", "1", 1);
    start();
    std::thread([] { cuptiActivityFlushAll(0); }).detach();
    // Until the other thread is inside: it is the call beside it that the rule forbids.
    uint64_t now = 0;
    for (int i = 0; i < 30'000 && fake_cuda_violations() == 0; ++i, usleep(1000))
      cuptiGetTimestamp(&now);
  });
}

TEST_F(Rules, CudaCallInACallback) {
  EXPECT_VIOLATION("cuda-in-callback", {
    start();
    client().on_callback = [](CUpti_CallbackDomain, CUpti_CallbackId, const CUpti_CallbackData&) {
      CUcontext context = nullptr;
      cuCtxGetCurrent(&context);
    };
    launch(function("k"));
  });
}

TEST_F(Rules, ActivityCallsBesideAnotherClient) {
  EXPECT_VIOLATION("foreign-client", {
    setenv("FAKE_CUDA_OTHER_CLIENT", "1", 1);
    start(false);
    CUpti_SubscriberHandle handle = nullptr;
    REQUIRE(cuptiSubscribe(&handle, on_callback, nullptr) == 39);
    cuptiActivityRegisterCallbacks(on_request, on_complete);
  });
}

TEST_F(Rules, CallsAfterUnsubscribe) {
  EXPECT_VIOLATION("after-unsubscribe", {
    start();
    cuptiUnsubscribe(client().subscriber);
    cuptiEnableCallback(0, client().subscriber, CUPTI_CB_DOMAIN_DRIVER_API, kLaunch);
  });
  EXPECT_VIOLATION("no-subscriber", {
    start();
    cuptiUnsubscribe(client().subscriber);
    cuptiActivityFlushAll(1);
  });
}

void launch_without_buffers(const char* api, const char* driver) {
  setenv("FAKE_CUDA_API", api, 1);
  setenv("FAKE_CUDA_DRIVER", driver, 1);
  start();
  client().give_null = true;
  cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  launch(function("k"));
  size_t dropped = 0;
  cuptiActivityGetNumDroppedRecords(nullptr, 0, &dropped);
  REQUIRE(dropped == 1);
  finish();
}

TEST_F(Rules, NullBufferIsDeadlyBelowApi27Only) {
  EXPECT_EXIT(launch_without_buffers("26", "12080"), ExitedWithCode(99), "violation null-buffer");
  EXPECT_EXIT(launch_without_buffers("130001", "13000"), ExitedWithCode(0), "");
}

TEST_F(Rules, LockHeldAcrossFlushAll) {
  EXPECT_VIOLATION("flush-deadlock", {
    setenv("FAKE_CUDA_FLUSH_WAITS", "1", 1);
    static std::mutex taken_in_callback;
    static std::atomic<bool> waiting{false};
    start();
    CUfunction f = function("k");
    client().on_callback = [](CUpti_CallbackDomain, CUpti_CallbackId, const CUpti_CallbackData&) {
      if (!taken_in_callback.try_lock()) {
        waiting = true;
        taken_in_callback.lock();
      }
      taken_in_callback.unlock();
    };
    std::lock_guard lock(taken_in_callback);
    std::thread([f] {
      for (;;) launch(f, 10);
    }).detach();
    while (!waiting) usleep(100);
    cuptiActivityFlushAll(0);
  });
}

TEST_F(Rules, FlushWaitsForACallbackAndReturns) {
  EXPECT_EXIT(
      {
        setenv("FAKE_CUDA_FLUSH_WAITS", "1", 1);
        start();
        CUfunction f = function("k");
        std::thread([f] {
          for (int i = 0; i < 200; ++i) launch(f, 10), usleep(1000);
        }).detach();
        usleep(20'000);
        cuptiActivityFlushAll(0);
        finish();
      },
      ExitedWithCode(0), "");
}

TEST_F(Rules, CancellationInsideACallback) {
  EXPECT_VIOLATION("cancelled-in-callback", {
    setenv("FAKE_CUDA_CANCEL_AT", "1", 1);
    start();
    CUfunction f = function("k");
    client().on_callback = [](CUpti_CallbackDomain, CUpti_CallbackId, const CUpti_CallbackData&) {
      usleep(10);
    };
    std::thread([f] { launch(f, 10); }).join();
  });
}

TEST_F(Rules, MaskedCancellationEndsTheThreadAfterTheCall) {
  EXPECT_EXIT(
      {
        setenv("FAKE_CUDA_CANCEL_AT", "1", 1);
        start();
        CUfunction f = function("k");
        client().on_callback = [](CUpti_CallbackDomain, CUpti_CallbackId,
                                  const CUpti_CallbackData&) {
          int before = 0;
          pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
          usleep(10);
          pthread_setcancelstate(before, nullptr);
        };
        static bool went_on = false;
        pthread_t thread{};
        pthread_create(
            &thread, nullptr,
            [](void* g) -> void* {
              launch(static_cast<CUfunction>(g), 10);
              went_on = true;
              return nullptr;
            },
            f);
        void* status = nullptr;
        pthread_join(thread, &status);
        REQUIRE(status == PTHREAD_CANCELED && !went_on && client().callbacks.size() == 2);
        finish();
      },
      ExitedWithCode(0), "");
}

TEST_F(Rules, CuptiInAForkedChild) {
  EXPECT_EXIT(
      {
        start();
        const pid_t child = fork();
        if (child == 0) {
          uint64_t now = 0;
          cuptiGetTimestamp(&now);
          exit(0);
        }
        int status = 0;
        waitpid(child, &status, 0);
        REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 99);
        finish();
      },
      ExitedWithCode(0), "violation after-fork");
}

TEST_F(Rules, KindsLeftEnabledAtUnsubscribe) {
  EXPECT_VIOLATION("kinds-left-enabled", {
    start();
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMSET);
    cuptiUnsubscribe(client().subscriber);
  });
}

}  // namespace
}  // namespace fakecuda

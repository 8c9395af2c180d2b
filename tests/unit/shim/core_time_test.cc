// SPDX-License-Identifier: Apache-2.0
//
// Clock conversion over steps, correlation epochs over wraps, futexes and the service thread.
#include <csignal>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include "proto/ring_abi.h"
#include "shim/core/clock.h"
#include "shim/core/correlation.h"
#include "shim/core/self.h"
#include "shim/core/status.h"
#include "shim/core/thread.h"

namespace gpuprof::shim {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kReal = 1'700'000'000 * kSecond;

TEST(Clock, ConvertsByOffsetAndKeepsDurations) {
  ClockConverter clock;
  uint64_t start = 0, end = 0;
  EXPECT_FALSE(clock.convert(kReal, kReal + 5, kSecond, &start, &end));  // no sample yet
  EXPECT_FALSE(clock.add_sample(100 * kSecond, kReal + 100 * kSecond + 10, 100 * kSecond + 20));
  ASSERT_TRUE(clock.convert(kReal + 99 * kSecond, kReal + 99 * kSecond + 1234, 101 * kSecond,
                            &start, &end));
  EXPECT_EQ(start, 99 * kSecond);
  EXPECT_EQ(end - start, 1234u);
}

TEST(Clock, InvalidTimesAreRefused) {
  ClockConverter clock;
  clock.add_sample(kSecond, kReal, kSecond);
  uint64_t start = 0, end = 0;
  EXPECT_FALSE(clock.convert(0, 0, kSecond, &start, &end));
  EXPECT_FALSE(clock.convert(0, kReal, kSecond, &start, &end));
  EXPECT_FALSE(clock.convert(kReal, 0, kSecond, &start, &end));
  EXPECT_FALSE(clock.convert(kReal, kReal - 1, kSecond, &start, &end));
  EXPECT_FALSE(clock.convert(12345, 12346, kSecond, &start, &end));  // before MONOTONIC began
  EXPECT_TRUE(clock.convert(kReal, kReal, kSecond, &start, &end));   // an empty one is valid
}

TEST(Clock, SlewIsNoStep) {
  ClockConverter clock;
  uint64_t real = kReal;
  for (uint64_t t = 1; t <= 1000; ++t) {
    const uint64_t now = t * 100'000'000;
    real += 100'000'000 + 50'000;  // 500 ppm
    EXPECT_FALSE(clock.add_sample(now, real, now));
  }
  // An hour without a sample at that rate is none either.
  EXPECT_FALSE(
      clock.add_sample(3700 * kSecond, real + 3600 * kSecond + 1'800'000'000, 3700 * kSecond));
  EXPECT_EQ(clock.steps(), 0u);
}

class ClockStep : public ::testing::TestWithParam<int64_t> {};

TEST_P(ClockStep, RecordsOfBothSidesLandInTheirOwnTime) {
  ClockConverter clock;
  const int64_t step = GetParam();
  EXPECT_FALSE(clock.add_sample(10 * kSecond, kReal + 10 * kSecond, 10 * kSecond));
  EXPECT_FALSE(clock.add_sample(20 * kSecond, kReal + 20 * kSecond, 20 * kSecond));
  const auto stepped = static_cast<uint64_t>(static_cast<int64_t>(kReal) + step);
  EXPECT_TRUE(clock.add_sample(20 * kSecond + 100'000'000, stepped + 20 * kSecond + 100'000'000,
                               20 * kSecond + 100'000'000));
  EXPECT_EQ(clock.steps(), 1u);
  const uint64_t now = 20 * kSecond + 200'000'000;
  uint64_t start = 0, end = 0;
  ASSERT_TRUE(clock.convert(kReal + 15 * kSecond, kReal + 15 * kSecond + 77, now, &start, &end));
  EXPECT_EQ(start, 15 * kSecond);
  EXPECT_EQ(end, 15 * kSecond + 77);
  const uint64_t late = 20 * kSecond + 150'000'000;
  ASSERT_TRUE(clock.convert(stepped + late, stepped + late + 5, now, &start, &end));
  EXPECT_EQ(start, late);
}

INSTANTIATE_TEST_SUITE_P(Steps, ClockStep,
                         ::testing::Values(-3600ll * 1'000'000'000, -2ll * 1'000'000'000,
                                           30ll * 1'000'000'000, 86400ll * 1'000'000'000));

TEST(Clock, LoosePairsDoNotMoveTheOffset) {
  ClockConverter clock;
  clock.add_sample(10 * kSecond, kReal + 10 * kSecond, 10 * kSecond);
  // Preempted for 2 s between the readings: looks like a step of 1 s.
  EXPECT_FALSE(clock.add_sample(11 * kSecond, kReal + 13 * kSecond, 13 * kSecond));
  EXPECT_EQ(clock.steps(), 0u);
}

TEST(Clock, RealSamplesAgreeWithTheClocks) {
  ClockConverter clock;
  clock.sample();
  timespec real;
  const uint64_t before = monotonic_ns();
  clock_gettime(CLOCK_REALTIME, &real);
  const uint64_t after = monotonic_ns();
  const uint64_t realtime =
      static_cast<uint64_t>(real.tv_sec) * kSecond + static_cast<uint64_t>(real.tv_nsec);
  uint64_t start = 0, end = 0;
  ASSERT_TRUE(clock.convert(realtime, realtime, after, &start, &end));
  EXPECT_GE(start + 1'000'000, before);
  EXPECT_LE(start, after + 1'000'000);
  EXPECT_LE(monotonic_coarse_ns(), monotonic_ns());
}

TEST(Correlation, IdsOfAnArmShareItsEpochAndWrapsMakeAnother) {
  Correlations c;
  EXPECT_EQ(c.epoch(), 0u);
  const uint32_t first = c.begin_arm(0xfffffff0u);
  EXPECT_GT(first, 0u);
  EXPECT_EQ(c.launch(0xfffffff1u).epoch, first);
  EXPECT_EQ(c.launch(0xffffffffu).epoch, first);
  const WideCorrelation wrapped = c.launch(3);
  EXPECT_EQ(wrapped.epoch, first + 1);
  EXPECT_EQ(wrapped.id, 3u);
  // A late record from before the wrap, and a record before its launch was seen.
  EXPECT_EQ(c.execution(0xfffffff8u).epoch, first);
  EXPECT_EQ(c.execution(100).epoch, first + 1);
}

TEST(Correlation, LaunchAndExecutionAgreeOverThreeWraps) {
  Correlations c;
  c.begin_arm(5);
  uint64_t wide = 5;
  uint32_t last_epoch = 0;
  for (int i = 0; i < 20'000; ++i, wide += 700'001) {
    const auto id = static_cast<uint32_t>(wide);
    const WideCorrelation launch = c.launch(id), execution = c.execution(id);
    ASSERT_EQ(launch.epoch, execution.epoch);
    ASSERT_GE(launch.epoch, last_epoch);
    last_epoch = launch.epoch;
    if (wide < 2'000'000'000) continue;
    // An execution that comes 1.9 G launches late still has its launch's epoch.
    const uint64_t old = wide - 1'900'000'000;
    ASSERT_EQ(c.execution(static_cast<uint32_t>(old)).epoch + (wide >> 32) - (old >> 32),
              launch.epoch);
  }
  EXPECT_GE(wide >> 32, 3u);
}

TEST(Correlation, WrapsWhileIdleCannotMixTwoArms) {
  Correlations c;
  const uint32_t first = c.begin_arm(1000);
  const WideCorrelation old = c.launch(2000);
  // Idle for exactly one wrap: the same id comes again.
  const uint32_t second = c.begin_arm(1990);
  const WideCorrelation fresh = c.launch(2000);
  EXPECT_EQ(old.id, fresh.id);
  EXPECT_NE(old.epoch, fresh.epoch);
  EXPECT_GT(second, first);
  // Also with an id that is below zero in the new arm's count.
  c.begin_arm(3);
  EXPECT_NE(c.launch(0xffffffffu).epoch, fresh.epoch);
}

TEST(Correlation, BeforeArmIsDecidedByTheFirstObservedLaunch) {
  Correlations c;
  c.begin_arm(5000);
  EXPECT_TRUE(c.execution(4999).before_arm);
  EXPECT_FALSE(c.execution(5000).before_arm);
  EXPECT_FALSE(c.execution(5001).before_arm);  // recorded before its exit callback
  // Another thread's launch with a smaller id was in flight and is observed after the arming one.
  EXPECT_FALSE(c.launch(4990).before_arm);
  EXPECT_FALSE(c.execution(4990).before_arm);
  EXPECT_TRUE(c.execution(4989).before_arm);
  c.begin_arm_at_init();
  EXPECT_FALSE(c.execution(UINT32_MAX - 10).before_arm);  // its launch's callback has yet to return
  EXPECT_FALSE(c.execution(1).before_arm);
  EXPECT_FALSE(c.launch(1).before_arm);
}

TEST(Correlation, ConcurrentLaunchesAgree) {
  Correlations c;
  const uint32_t epoch = c.begin_arm(0xfff00000u);
  std::atomic<uint64_t> next{0xfff00000u};
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50'000; ++i) {
        const uint64_t wide = next.fetch_add(37);
        const WideCorrelation got = c.launch(static_cast<uint32_t>(wide));
        wrong += got.epoch != epoch + (wide >> 32);
        wrong += c.execution(static_cast<uint32_t>(wide)).epoch != got.epoch;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Thread, ServiceThreadIsNamedUnsignalledAndSmall) {
  static std::atomic<uint32_t> done{0};
  static sigset_t mask;
  static std::string name, stack;
  static int cancel_state;
  sigset_t mine_before, mine_after;
  pthread_sigmask(SIG_SETMASK, nullptr, &mine_before);
  ASSERT_EQ(start_service_thread(
                [](void* argument) {
                  EXPECT_EQ(*static_cast<int*>(argument), 7);
                  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
                  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
                  std::ifstream comm("/proc/self/task/" + std::to_string(thread_id()) + "/comm");
                  std::getline(comm, name);
                  done.store(1);
                  futex_wake(done);
                },
                [] {
                  static int seven = 7;
                  return &seven;
                }()),
            Status::kOk);
  while (done.load() == 0) (void)futex_wait(done, 0, kSecond);
  pthread_sigmask(SIG_SETMASK, nullptr, &mine_after);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGPROF, SIGCHLD, SIGALRM}) {
    EXPECT_EQ(sigismember(&mask, signal), 1) << signal;
    EXPECT_EQ(sigismember(&mine_after, signal), sigismember(&mine_before, signal));
  }
  EXPECT_EQ(name, "gpu-profiled");
  EXPECT_EQ(cancel_state, PTHREAD_CANCEL_DISABLE);
}

TEST(Thread, ServiceThreadOfARealTimeCallerIsOrdinary) {
  static std::atomic<uint32_t> done{0};
  static int policy = -1;
  bool real_time = false;
  std::thread caller([&] {
    const sched_param priority{1};
    real_time = pthread_setschedparam(pthread_self(), SCHED_FIFO, &priority) == 0;
    if (!real_time) return;
    ASSERT_EQ(start_service_thread(
                  [](void*) {
                    policy = sched_getscheduler(0);
                    done.store(1);
                    futex_wake(done);
                  },
                  nullptr),
              Status::kOk);
    while (done.load() == 0) (void)futex_wait(done, 0, kSecond);
  });
  caller.join();
  if (!real_time) GTEST_SKIP() << "real-time scheduling is not permitted here";
  EXPECT_EQ(policy, SCHED_OTHER);
}

// Not inlined, or the array would belong to the caller's frame.
__attribute__((noinline)) uint32_t from_below(size_t bytes) {
  volatile char used[8192];
  used[0] = 1;
  used[sizeof used - 1] = used[0];
  const uint32_t here = bytes <= sizeof used ? stack_copy_bytes() : from_below(bytes - sizeof used);
  return here + static_cast<uint32_t>(used[0] - 1);
}

TEST(Thread, StackCopyBytesFollowTheDepthAndAreCapped) {
  const auto check = [] {
    const uint32_t shallow = stack_copy_bytes();
    EXPECT_GT(shallow, 0u);
    EXPECT_LT(shallow, 32'768u);
    const uint32_t deeper = from_below(2 * 8192);
    EXPECT_GE(deeper, shallow + 2 * 8192);
    EXPECT_LT(deeper, shallow + 3 * 8192);
    EXPECT_EQ(from_below(GPUPROF_STACK_MAX_BYTES + 8192), GPUPROF_STACK_MAX_BYTES);
  };
  check();
#ifndef __SANITIZE_THREAD__  // its static TLS, at the top of each thread's stack, is over 64 KiB
  std::thread(check).join();
#endif
}

TEST(Thread, FutexTimesOutAndSeesChanges) {
  std::atomic<uint32_t> word{0};
  EXPECT_FALSE(futex_wait(word, 0, 10'000'000));
  EXPECT_TRUE(futex_wait(word, 1, kSecond));  // has changed already
  std::thread waker([&] {
    word.store(1);
    futex_wake(word);
  });
  while (word.load() == 0) (void)futex_wait(word, 0, UINT64_MAX);
  waker.join();
}

TEST(Thread, NoCancelHoldsACancellationBack) {
  static std::atomic<int> reached{0};
  pthread_t thread;
  static std::atomic<uint32_t> go{0};
  ASSERT_EQ(pthread_create(
                &thread, nullptr,
                [](void*) -> void* {
                  {
                    NoCancel guard;
                    while (go.load() == 0) (void)futex_wait(go, 0, kSecond);
                    pthread_testcancel();
                    reached = 1;
                  }
                  pthread_testcancel();
                  reached = 2;
                  return nullptr;
                },
                nullptr),
            0);
  pthread_cancel(thread);
  go.store(1);
  futex_wake(go);
  void* result = nullptr;
  pthread_join(thread, &result);
  EXPECT_EQ(reached, 1);
  EXPECT_EQ(result, PTHREAD_CANCELED);
}

}  // namespace
}  // namespace gpuprof::shim

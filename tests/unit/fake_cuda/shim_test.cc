// SPDX-License-Identifier: Apache-2.0
// The real shim, injected into real processes on the fake driver, with nobody attached: it keeps
// the rules, gives every buffer back, and leaves the application's fate alone. No privilege needed.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "tests/unit/fake_cuda/control_page.h"
#include "tests/unit/fake_cuda/program.h"

namespace fakecuda {
namespace {

#ifdef GPUPROF_SANITIZED
constexpr int kManyLaunches = 10'000, kLaunches = 2'000;
#else
constexpr int kManyLaunches = 200'000, kLaunches = 20'000;
#endif

std::vector<std::string> workload(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), WORKLOAD_PATH);
  return arguments;
}

struct Armed {
  Environment environment;
};

Armed armed(Environment more = {}) {
  more["GPU_PROFILED_ARM"] = "trace";
  return {std::move(more)};
}

using fakecuda::run;

/// As `gpu-profiled run` does it: the lease that an armed start has is two seconds, which on a busy
/// machine are soon over, so it is renewed.
Outcome run(const std::vector<std::string>& arguments, const Armed& how) {
  Program program(arguments, how.environment);
  ControlPage control(program.pid());
  if (control.opened()) control.write(GPUPROF_TIER_TRACE, GPUPROF_LEASE_MS_MAX);
  return program.wait();
}

/// No rule broken, and CUPTI owes nothing: what was recorded was delivered or counted as dropped.
void expect_clean(const Outcome& outcome, int status = 0) {
  EXPECT_EQ(outcome.status, status) << outcome.errors;
  EXPECT_EQ(outcome.violations, "");
  EXPECT_EQ(outcome.number("recorded_executions"),
            outcome.number("delivered") + outcome.number("dropped"));
}

void expect_everything_recorded(const Outcome& outcome) {
  expect_clean(outcome);
  EXPECT_GT(outcome.number("executions"), 0);
  EXPECT_EQ(outcome.number("recorded_executions"), outcome.number("executions"));
  EXPECT_EQ(outcome.number("dropped"), 0);
  EXPECT_EQ(outcome.number("buffers_completed"), outcome.number("buffers_requested"));
}

TEST(ShimOnFake, TracesFromTheFirstLaunchAtFullSpeed) {
  const Outcome o = run(workload({"--launches", std::to_string(kManyLaunches)}),
                        armed({{"FAKE_CUDA_INSTANT", "1"}}));
  expect_everything_recorded(o);
  EXPECT_EQ(o.number("executions"), kManyLaunches);
}

TEST(ShimOnFake, IdleHoldsNothingOfCupti) {
  const Outcome o = run(workload({"--launches", std::to_string(kLaunches)}));
  expect_clean(o);
  EXPECT_EQ(o.number("subscribes"), 0);
  EXPECT_EQ(o.number("callbacks"), 0);
  EXPECT_EQ(o.number("recorded_executions"), 0);
  EXPECT_EQ(o.errors, "");
}

TEST(ShimOnFake, CopiesFillsGraphsAndCapture) {
  expect_everything_recorded(run(
      workload({"--launches", std::to_string(kLaunches), "--memcpy-every", "7", "--memset-every",
                "11", "--graph-every", "50", "--main", "--driver-every", "3", "--recapture"}),
      armed()));
}

TEST(ShimOnFake, HoldsNoLockAcrossFlushAll) {
  expect_clean(run(workload({"--launches", "0", "--rate", "2000", "--seconds", "1"}),
                   armed({{"FAKE_CUDA_FLUSH_WAITS", "1"}})));
}

TEST(ShimOnFake, BuffersAskedForAndCompletedOnCuptisThread) {
  expect_everything_recorded(
      run(workload({"--launches", "0", "--rate", "2000", "--seconds", "1"}),
          armed({{"FAKE_CUDA_REQUEST_ON_WORKER", "1"}, {"FAKE_CUDA_COMPLETE_ON_FLUSHER", "0"}})));
}

TEST(ShimOnFake, LateBuffersInTheWrongOrder) {
  expect_clean(run(workload({"--launches", "0", "--rate", "5000", "--seconds", "1"}),
                   armed({{"FAKE_CUDA_LATE_MS", "300"}, {"FAKE_CUDA_REORDER", "1"}})));
}

TEST(ShimOnFake, DroppedAndBrokenRecords) {
  expect_clean(
      run(workload({"--launches", "8000"}), armed({{"FAKE_CUDA_DROP_EVERY", "100"},
                                                   {"FAKE_CUDA_ZERO_TIMES_EVERY", "50"},
                                                   {"FAKE_CUDA_REVERSE_TIMES_EVERY", "60"}})));
}

TEST(ShimOnFake, ExitDoesNotWaitForAFlushThatHangs) {
  double fastest = 1e9;  // a single one tells of the machine's load as well
  for (int attempt = 0; attempt < 5 && fastest > 4.5; ++attempt) {
    const Outcome o = run(workload({"--launches", "4000", "--seconds", "1", "--rate", "1000"}),
                          armed({{"FAKE_CUDA_FLUSH_HANG", "2"}}));
    EXPECT_EQ(o.status, 0) << o.errors;
    EXPECT_EQ(o.violations, "");
    fastest = std::min(fastest, o.seconds);
  }
  EXPECT_LT(fastest, 1 + 2.5 + 1);  // the run, the promise of design 3.1, the start
}

TEST(ShimOnFake, CorrelationWraps) {
  expect_everything_recorded(run(workload({"--launches", std::to_string(kLaunches)}),
                                 armed({{"FAKE_CUDA_CORRELATION", "4294960000"}})));
}

TEST(ShimOnFake, TouchesNothingBesideAnotherClient) {
  const Outcome o = run(workload({"--launches", "0", "--rate", "1000", "--seconds", "1"}),
                        armed({{"FAKE_CUDA_OTHER_CLIENT", "1"}}));
  expect_clean(o);
  EXPECT_EQ(o.number("enables") + o.number("flushes"), 0);
}

TEST(ShimOnFake, SurvivesAThreadCancelledInItsCallback) {
  for (const char* driver_every : {"0", "1"}) {
    expect_everything_recorded(run(workload({"--launches", "0", "--rate", "1000", "--seconds", "1",
                                             "--driver-every", driver_every}),
                                   armed({{"FAKE_CUDA_CANCEL_AT", "50"}})));
  }
}

TEST(ShimOnFake, GivesUpCleanlyWhenEnablingFails) {
  const Outcome o = run(workload({"--launches", "0", "--rate", "1000", "--seconds", "1"}),
                        armed({{"FAKE_CUDA_ENABLE_FAIL", "10:14"}}));
  expect_clean(o);
  EXPECT_EQ(o.number("recorded_executions"), 0);
}

TEST(ShimOnFake, OtherCuptiVersions) {
  expect_everything_recorded(run(workload({"--launches", "4000", "--memcpy-every", "7"}),
                                 armed({{"GPU_PROFILED_CUPTI_PATH", CUPTI12_PATH}})));
  // 11.8 on a driver of its time, and on a CUDA 13 driver, where only runtime callbacks come.
  for (const char* driver : {"12080", "13000"}) {
    expect_everything_recorded(
        run(workload({"--launches", "4000", "--memcpy-every", "7"}),
            armed({{"GPU_PROFILED_CUPTI_PATH", CUPTI118_PATH}, {"FAKE_CUDA_DRIVER", driver}})));
  }
  expect_everything_recorded(
      run(workload({"--launches", "4000"}), armed({{"FAKE_CUDA_API", "21"}})));
}

TEST(ShimOnFake, DeclinesACuptiNewerThanTheDriver) {
  const Outcome o = run(workload({"--launches", "100"}), armed({{"FAKE_CUDA_DRIVER", "12080"}}));
  expect_clean(o);
  EXPECT_EQ(o.number("subscribes"), 0);
  EXPECT_NE(o.errors.find("newer than the driver"), std::string::npos) << o.errors;
}

/// A copy of the fake CUPTI without one function, in a directory of its own.
Outcome run_without(const std::string& symbol) {
  char directory[] = "/tmp/fake_cupti.XXXXXX";
  EXPECT_NE(mkdtemp(directory), nullptr);
  const std::string copy = std::string(directory) + "/libcupti.so.13";
  EXPECT_EQ(run({HIDE_PATH, CUPTI13_PATH, copy, symbol}).status, 0);
  Outcome o = run(workload({"--launches", "1000"}), armed({{"GPU_PROFILED_CUPTI_PATH", copy}}));
  unlink(copy.c_str());
  rmdir(directory);
  return o;
}

TEST(ShimOnFake, NamesARequiredFunctionThatIsMissing) {
  const Outcome o = run_without("cuptiActivityFlushAll");
  expect_clean(o);
  EXPECT_EQ(o.number("subscribes"), 0);
  EXPECT_NE(o.errors.find("cuptiActivityFlushAll"), std::string::npos) << o.errors;
}

TEST(ShimOnFake, DoesWithoutTheOptionalFunctions) {
  for (const char* symbol : {"cuptiRegisterComputeCrcCallback", "cuptiActivitySetAttribute"}) {
    expect_everything_recorded(run_without(symbol));
  }
}

TEST(ShimOnFake, HashCallbackOnTemporaryImages) {
  expect_everything_recorded(run({SHORT_PATH}, armed({{"FAKE_CUDA_TEMPORARY_MODULES", "1"}})));
}

TEST(ShimOnFake, PlaysTheDemoSession) {
  expect_everything_recorded(run({PLAY_PATH, DEMO_SESSION}, armed()));
}

TEST(ShimOnFake, ForkedChildrenStayQuiet) {
  for (const char* mode : {"exit", "_exit", "use", "raw", "exec"}) {
    const Outcome o = run({FORKER_PATH, "5", mode, SHORT_PATH}, armed());
    SCOPED_TRACE(mode);
    expect_clean(o);
  }
}

TEST(ShimOnFake, KeepsTheExitStatus) {
  expect_clean(run({SHORT_PATH, "5", "3"}, armed()), 3);
  EXPECT_EQ(run({SHORT_PATH, "5", "4", "_exit"}, armed()).status, 4);
  EXPECT_EQ(run({SHORT_PATH, "5", "0", "kill"}, armed()).status, 128 + SIGKILL);
  EXPECT_EQ(run({SHORT_PATH, "5", "0", "abort"}, armed()).status, 128 + SIGABRT);
}

TEST(ShimOnFake, HundredStartsAndExits) {
  for (int i = 0; i < 100; ++i) expect_everything_recorded(run({SHORT_PATH}, armed()));
}

TEST(ShimOnFake, ArmsAndDisarmsUnderLoad) {
  constexpr uint32_t kCycles = 8;
  Program program(
      workload({"--launches", "0", "--rate", "5000", "--graph-every", "100", "--recapture"}),
      {{"FAKE_CUDA_INSTANT", "1"}});
  ControlPage control(program.pid());
  ASSERT_TRUE(control.opened());
  for (uint32_t cycle = 1; cycle <= kCycles; ++cycle) {
    control.write(GPUPROF_TIER_TRACE, GPUPROF_LEASE_MS_MAX);
    ASSERT_TRUE(control.wait_for(GPUPROF_STATE_TRACING)) << control.text();
    usleep(20'000);
    control.write(GPUPROF_TIER_OFF, 5000);
    ASSERT_TRUE(control.wait_for(GPUPROF_STATE_IDLE)) << control.text();
    EXPECT_EQ(control.status().disarms, cycle);
  }
  program.signal(SIGTERM);
  const Outcome o = program.wait();
  expect_clean(o);
  EXPECT_EQ(o.number("subscribes"), kCycles);
  EXPECT_EQ(o.number("unsubscribes"), kCycles);
  EXPECT_GT(o.number("recorded_executions"), 0);
  EXPECT_LT(o.number("recorded_executions"), o.number("executions"));
}

TEST(ShimOnFake, DisarmsWhenTheLeaseRunsOut) {
  Program program(workload({"--launches", "0", "--rate", "1000"}), {});
  ControlPage control(program.pid());
  ASSERT_TRUE(control.opened());
  control.write(GPUPROF_TIER_TRACE, 300);
  ASSERT_TRUE(control.wait_for(GPUPROF_STATE_TRACING)) << control.text();
  ASSERT_TRUE(control.wait_for(GPUPROF_STATE_IDLE)) << control.text();
  EXPECT_EQ(control.status().reason, static_cast<uint32_t>(GPUPROF_REASON_LEASE_EXPIRED));
  program.signal(SIGTERM);
  expect_clean(program.wait());
}

}  // namespace
}  // namespace fakecuda

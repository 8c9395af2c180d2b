// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include "daemon/cli/diagnose.h"
#include "daemon/cli/progress.h"

namespace gpuprof::cli {
namespace {

InjectionFacts facts(bool libcuda, std::optional<std::string> injection, bool mapped) {
  InjectionFacts out;
  out.pid = 42;
  out.libcuda_mapped = libcuda;
  out.injection = std::move(injection);
  out.injection_mapped = mapped;
  return out;
}

TEST(ExplainNoShim, TellsTheCasesApart) {
  const std::string none = explain_no_shim(facts(false, {}, false));
  const std::string early = explain_no_shim(facts(false, "/shim.so", false));
  const std::string plain = explain_no_shim(facts(true, {}, false));
  const std::string broken = explain_no_shim(facts(true, "/gone\x1b.so", false));
  const std::string foreign = explain_no_shim(facts(true, "/nsys.so", true));
  EXPECT_NE(none.find("does not use CUDA"), std::string::npos) << none;
  EXPECT_NE(early.find("not initialised CUDA yet"), std::string::npos) << early;
  EXPECT_NE(plain.find("started without the shim"), std::string::npos) << plain;
  EXPECT_NE(broken.find("broken injection: CUDA_INJECTION64_PATH=/gone?.so"), std::string::npos)
      << broken;
  EXPECT_NE(foreign.find("another tool's injection"), std::string::npos) << foreign;
  for (const std::string& text : {none, early, plain, broken, foreign}) {
    EXPECT_NE(text.find("process 42"), std::string::npos);
    EXPECT_EQ(text.find('\n'), std::string::npos);
  }
}

TEST(ExplainNoShim, ALibcudaThatCannotWorkIsNamedFirst) {
  InjectionFacts failing = facts(true, "/shim.so", false);
  failing.libcuda_fails = "/c/compat/libcuda.so.580.1 is older than the kernel module 580.2";
  EXPECT_EQ(explain_no_shim(failing),
            "process 42: CUDA cannot work in it: /c/compat/libcuda.so.580.1 is older than the "
            "kernel module 580.2");
  failing.injection_mapped = true;
  EXPECT_NE(explain_no_shim(failing).find("another tool's injection"), std::string::npos);
}

TEST(ExplainNoShim, TheCauseInTheFileAndWhoDroppedTheVariable) {
  InjectionFacts broken = facts(true, "/shim.so", false);
  const std::string prefix = "process 42: broken injection: CUDA_INJECTION64_PATH=/shim.so: ";
  EXPECT_EQ(explain_no_shim(broken).find(prefix + "the file is good and no GPU device is open"),
            0u);
  broken.gpu_open = true;
  EXPECT_NE(explain_no_shim(broken).find("SELinux or AppArmor"), std::string::npos);
  broken.library = {doctor::LibraryFault::kMissing, "there is no such file: mount it"};
  EXPECT_EQ(explain_no_shim(broken), prefix + "there is no such file: mount it");
  broken.injection_mapped = true;
  EXPECT_EQ(no_shim_of(broken), NoShim::kForeign);
  broken.library.fault = doctor::LibraryFault::kNoExport;
  EXPECT_EQ(no_shim_of(broken), NoShim::kBroken) << "no tool's injection: it has no entry";
  InjectionFacts lost = facts(true, {}, false);
  lost.lost = "sudo dropped it";
  EXPECT_TRUE(explain_no_shim(lost).ends_with("set to the shim (sudo dropped it)"));
}

TEST(DiagnoseNoShim, OurselvesWithoutCuda) {
  const Error error = diagnose_no_shim(static_cast<uint32_t>(::getpid()));
  EXPECT_EQ(error.code, Code::kNoTarget);
  EXPECT_NE(error.message.find("libcuda is not mapped"), std::string::npos);
}

TEST(DiagnoseNoShim, NamesTheChildrenThatWereLookedAt) {
  const auto self = static_cast<uint32_t>(::getpid());
  EXPECT_EQ(diagnose_no_shim(self, {}).message, diagnose_no_shim(self).message);
  EXPECT_NE(diagnose_no_shim(self, {self, self}).message.find("none of its 2 children does"),
            std::string::npos);
  EXPECT_NE(diagnose_no_shim(self, {self}).message.find("its child does not"), std::string::npos);
}

TEST(ExplainState, OnlyWhatCannotTrace) {
  target::ShimStatus status;
  status.reason_text = "no libcupti.so.13: install cuda-cupti";
  status.state = GPUPROF_STATE_DECLINED;
  auto declined = explain_state(42, status);
  ASSERT_TRUE(declined.has_value());
  EXPECT_EQ(declined->code, Code::kNoTarget);
  EXPECT_NE(declined->message.find("install cuda-cupti"), std::string::npos);
  status.state = GPUPROF_STATE_BUSY;
  EXPECT_EQ(explain_state(42, status)->code, Code::kUnavailable) << "it may end: not a refusal";
  status.state = GPUPROF_STATE_INVALID;
  EXPECT_TRUE(explain_state(42, status).has_value());
  for (const auto state :
       {GPUPROF_STATE_IDLE, GPUPROF_STATE_ARMING, GPUPROF_STATE_TRACING, GPUPROF_STATE_DISARMING}) {
    status.state = state;
    EXPECT_FALSE(explain_state(42, status).has_value()) << target::state_name(state);
  }
}

TEST(ExplainState, AnExitIsNoFailureOfTheShim) {
  target::ShimStatus status;
  status.state = GPUPROF_STATE_INERT;
  status.reason = GPUPROF_REASON_EXITING;
  EXPECT_EQ(explain_state(42, status)->message,
            "process 42 ended without launching GPU work while it was observed: attach while it "
            "uses the GPU, or start it with gpu-profiled run -- COMMAND");
  status.reason_text = "another CUPTI client holds the subscriber";
  EXPECT_EQ(explain_state(42, status)->message,
            "process 42 ended, and could not be traced before: another CUPTI client holds the "
            "subscriber");
}

TEST(RemedyOf, LimitsAreNamed) {
  EXPECT_NE(fail_errno(Code::kIo, EMFILE, "pipe").value().message.find("ulimit -n"),
            std::string::npos);
  EXPECT_NE(fail_errno(Code::kIo, ENOMEM, "ring").value().message.find("ulimit -v"),
            std::string::npos);
  EXPECT_EQ(fail_errno(Code::kIo, EPERM, "x").value().message, "x: Operation not permitted");
}

TEST(ExplainPcSampling, OnlyARefusalAndWhatToChange) {
  target::ShimStatus status;
  status.state = GPUPROF_STATE_TRACING;
  target::PcStatus& pc = status.pc;
  for (const auto state : {GPUPROF_PC_OFF, GPUPROF_PC_WAITING, GPUPROF_PC_ON}) {
    pc.state = state;
    EXPECT_FALSE(explain_pc_sampling(42, status).has_value()) << target::pc_state_name(state);
  }
  pc.state = GPUPROF_PC_REFUSED;
  pc.reason = GPUPROF_PC_REASON_PRIVILEGE;
  pc.reason_text = "Enable answered 35: load the module with X";
  const auto told = explain_pc_sampling(42, status);
  ASSERT_TRUE(told.has_value());
  EXPECT_NE(told->find("process 42: no PC sampling (privilege): Enable answered 35: load the "
                       "module with X; tracing goes on"),
            std::string::npos)
      << *told;
  status.state = GPUPROF_STATE_INERT;
  status.reason = GPUPROF_REASON_QUIRK;
  EXPECT_EQ(explain_pc_sampling(42, status)->find("tracing goes on"), std::string::npos);
  pc.reason_text.clear();
  EXPECT_NE(explain_pc_sampling(42, status)->find("RmProfilingAdminOnly"), std::string::npos);
}

TEST(ProgressText, RatesOverTheInterval) {
  Recorder::Totals before, now;
  before.executions = 1000;
  now.executions = 51000;
  now.busy_ns = 250'000'000;
  now.devices = 1;
  now.lost = 3;
  EXPECT_EQ(progress_text(2'000'000'000, 500'000'000, before, now),
            "2.0 s  100000 executions/s  GPU 50 % busy  3 lost  (Ctrl-C ends)");
  EXPECT_EQ(progress_text(0, 0, {}, {}),
            "0.0 us  0 executions/s  GPU 0 % busy  0 lost  (Ctrl-C ends)");
}

}  // namespace
}  // namespace gpuprof::cli

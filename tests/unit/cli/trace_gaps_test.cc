// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "daemon/cli/trace_gaps.h"

namespace gpuprof::cli {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint32_t kLeaseMs = 3000;

// The target lives in a time namespace: its clock is not ours.
constexpr uint64_t kShift = 1000 * kSecond;

// `at_ns`: its last heartbeat. Both times as our clock has them.
target::ShimStatus page(uint32_t arms, uint64_t off_since_ns, uint64_t off_ns,
                        uint64_t at_ns = 10 * kSecond) {
  target::ShimStatus out;
  out.state = off_since_ns == 0 && arms > 0 ? GPUPROF_STATE_TRACING : GPUPROF_STATE_IDLE;
  out.arms = arms;
  out.off_since_ns = off_since_ns == 0 ? 0 : off_since_ns + kShift;
  out.heartbeat_ns = at_ns + kShift;
  out.off_ns = off_ns;
  return out;
}

void expect_none(const TraceGaps& gaps) {
  EXPECT_EQ(gaps.count(), 0u);
  EXPECT_EQ(gaps.total_ns(), 0u);
  EXPECT_EQ(gaps.cause(), TraceGaps::Cause::kNone);
  EXPECT_EQ(gaps.line(42), "");
}

TEST(TraceGaps, WhatWasBeforeUsIsNone) {
  TraceGaps never_armed, armed_before, armed_now;
  never_armed.begin(page(0, 0, 0), true, 10 * kSecond, 10 * kSecond);
  never_armed.update(page(1, 0, 0), 11 * kSecond);
  expect_none(never_armed);
  // Two arms of others and a pause since second 4; ours begins at 10.2.
  armed_before.begin(page(2, 4 * kSecond, kSecond), true, 10 * kSecond, 10 * kSecond);
  expect_none(armed_before);
  armed_before.update(page(3, 0, 7'200'000'000), 11 * kSecond);
  expect_none(armed_before);
  armed_before.update(page(3, 0, 7'200'000'000), 60 * kSecond);
  expect_none(armed_before);
  // Another's lease had not run out yet.
  armed_now.begin(page(2, 0, kSecond), true, 10 * kSecond, 10 * kSecond);
  armed_now.update(page(2, 0, kSecond), 11 * kSecond);
  expect_none(armed_now);
}

TEST(TraceGaps, AStalledProfilerIsToldWithTheTimeThatIsMissing) {
  TraceGaps gaps;
  gaps.begin(page(0, 0, 0), true, 10 * kSecond, 10 * kSecond);
  gaps.renewed(kLeaseMs, 10 * kSecond);
  gaps.update(page(1, 0, 0), 11 * kSecond);
  gaps.renewed(kLeaseMs, 18 * kSecond);
  gaps.update(page(1, 13 * kSecond, 0, 18 * kSecond), 18 * kSecond);
  EXPECT_EQ(gaps.count(), 1u);
  EXPECT_EQ(gaps.total_ns(), 5 * kSecond);
  EXPECT_NE(gaps.line(42).find("process 42 was not traced for the last 5.0 s (1 gap): gpu-profiled "
                               "was stopped or had no CPU time"),
            std::string::npos)
      << gaps.line(42);
  gaps.update(page(2, 0, 5'300'000'000), 19 * kSecond);
  EXPECT_EQ(gaps.count(), 1u);
  EXPECT_EQ(gaps.total_ns(), 5'300'000'000u);
  EXPECT_EQ(gaps.cause(), TraceGaps::Cause::kStalled);
  gaps.update(page(3, 0, 9'300'000'000), 39 * kSecond);
  EXPECT_NE(gaps.line(42).find("for 9.3 s (2 gaps)"), std::string::npos) << gaps.line(42);
  EXPECT_EQ(gaps.line(42).find('\n'), std::string::npos);
}

TEST(TraceGaps, AYieldIsToldApart) {
  TraceGaps gaps;
  gaps.yielded();  // before anything was recorded: no gap
  gaps.begin(page(0, 0, 0), true, 10 * kSecond, 10 * kSecond);
  gaps.yielded();
  gaps.renewed(kLeaseMs, 10 * kSecond);
  gaps.update(page(1, 0, 0), 11 * kSecond);
  gaps.yielded();
  gaps.taken_back();  // before the shim saw it
  expect_none(gaps);
  gaps.yielded();
  gaps.renewed(kLeaseMs, 12 * kSecond);
  gaps.update(page(1, 12 * kSecond, 0, 14 * kSecond), 14 * kSecond);
  EXPECT_EQ(gaps.cause(), TraceGaps::Cause::kYielded);
  gaps.taken_back();
  gaps.renewed(kLeaseMs, 14 * kSecond);
  gaps.update(page(2, 0, 2 * kSecond), 15 * kSecond);
  EXPECT_EQ(gaps.cause(), TraceGaps::Cause::kYielded);
  EXPECT_EQ(gaps.line(42),
            "process 42 was not traced for 2.0 s (1 gap): CUPTI was yielded to other clients, as "
            "asked by SIGUSR1; GPU work of that time is missing");
  gaps.renewed(kLeaseMs, 19 * kSecond);  // stalled for longer than the lease
  gaps.update(page(3, 0, 4 * kSecond), 20 * kSecond);
  EXPECT_EQ(gaps.cause(), TraceGaps::Cause::kStalled);
  EXPECT_NE(gaps.line(42).find("for 4.0 s (2 gaps, 1 of them yielded): gpu-profiled was stopped"),
            std::string::npos)
      << gaps.line(42);
}

// Stopped right after it wrote the first request: no page of the first arm was seen.
TEST(TraceGaps, FirstSeenAfterTheLapse) {
  TraceGaps late, again;
  late.begin(page(2, 4 * kSecond, kSecond), true, 10 * kSecond, 10 * kSecond);
  late.renewed(kLeaseMs, 10 * kSecond);
  // Armed at 10.2 s, lapsed at 13.2 s.
  late.update(page(3, 13'200'000'000, 7'200'000'000, 20 * kSecond), 20 * kSecond);
  EXPECT_EQ(late.count(), 1u);
  EXPECT_EQ(late.total_ns(), 6'800'000'000u);
  EXPECT_EQ(late.cause(), TraceGaps::Cause::kStalled);
  // A child that was armed at its start, and was adopted after that lease.
  again.begin(page(1, 12 * kSecond, 0, 14 * kSecond), false, 5 * kSecond, 14 * kSecond);
  EXPECT_EQ(again.count(), 1u);
  EXPECT_EQ(again.total_ns(), 2 * kSecond);
  EXPECT_EQ(again.cause(), TraceGaps::Cause::kStalled);
}

TEST(TraceGaps, AControlPageThatCannotBeWrittenOrWasOverwritten) {
  TraceGaps sealed, scribbled;
  for (TraceGaps* gaps : {&sealed, &scribbled}) {
    gaps->begin(page(0, 0, 0), true, 10 * kSecond, 10 * kSecond);
    gaps->renewed(kLeaseMs, 10 * kSecond);
    gaps->update(page(1, 0, 0), 11 * kSecond);
  }
  sealed.renewal_failed("writing the shim's control page: Operation not permitted");
  sealed.update(page(1, 13 * kSecond, 0, 20 * kSecond), 20 * kSecond);
  EXPECT_EQ(sealed.cause(), TraceGaps::Cause::kUnwritable);
  EXPECT_NE(sealed.line(42).find("Operation not permitted"), std::string::npos) << sealed.line(42);
  EXPECT_NE(sealed.line(42).find("restart the process"), std::string::npos) << sealed.line(42);
  scribbled.renewed(kLeaseMs, 11 * kSecond);
  scribbled.update(page(2, 0, 400'000'000), 12 * kSecond);
  EXPECT_EQ(scribbled.cause(), TraceGaps::Cause::kOverwritten);
  EXPECT_NE(scribbled.line(42).find("stray writes"), std::string::npos) << scribbled.line(42);
}

// Its last heartbeat is the end of a process that exited while it was not traced.
TEST(TraceGaps, AnExitEndsTheGap) {
  TraceGaps gaps;
  gaps.begin(page(0, 0, 0), true, 10 * kSecond, 10 * kSecond);
  gaps.renewed(kLeaseMs, 10 * kSecond);
  target::ShimStatus last = page(1, 13 * kSecond, 0, 15 * kSecond);
  last.state = GPUPROF_STATE_INERT;
  gaps.update(last, 60 * kSecond);
  EXPECT_EQ(gaps.total_ns(), 2 * kSecond);
}

// A refused start of PC sampling ends what CUPTI traces; nobody overwrote anything.
TEST(TraceGaps, ALeaseOfTheStartThatLapsesBeforeTheFirstRenewal) {
  TraceGaps gaps;
  gaps.begin(page(1, 0, 0), false, 10 * kSecond, 10 * kSecond);
  gaps.update(page(1, 11 * kSecond, 0, 12 * kSecond), 12 * kSecond);
  EXPECT_STREQ(cause_name(gaps.cause()), "stalled");
}

TEST(TraceGaps, AShimThatEndsTracingSaysWhy) {
  for (const auto reason : {GPUPROF_REASON_QUIRK, GPUPROF_REASON_FATAL_ERROR}) {
    TraceGaps gaps;
    gaps.begin(page(0, 0, 0), true, 10 * kSecond, 10 * kSecond);
    gaps.renewed(kLeaseMs, 19 * kSecond);
    target::ShimStatus ended = page(1, 13 * kSecond, 0, 20 * kSecond);
    ended.state = GPUPROF_STATE_INERT;
    ended.reason = reason;
    ended.reason_text = "CUPTI traces nothing; restart the process";
    gaps.update(ended, 20 * kSecond);
    ended.reason = GPUPROF_REASON_EXITING;  // the cause stays
    gaps.update(ended, 20 * kSecond);
    EXPECT_EQ(gaps.total_ns(), 7 * kSecond);
    EXPECT_STREQ(cause_name(gaps.cause()), "ended");
    EXPECT_NE(gaps.line(42).find("for good (CUPTI traces nothing; restart the process)"),
              std::string::npos)
        << gaps.line(42);
  }
}

TEST(TraceGaps, NumbersThatCannotBeTrueAreLeftOut) {
  const target::ShimStatus cannot_be[] = {
      page(4'000'000'000, 0, 0),
      page(2, 0, 1ull << 60),
      page(2, 0, 11 * kSecond),
      page(1, 1, 0, 1ull << 60),
  };
  for (const target::ShimStatus& status : cannot_be) {
    TraceGaps gaps;
    gaps.begin(page(0, 0, 0), true, 10 * kSecond, 10 * kSecond);
    gaps.renewed(kLeaseMs, 10 * kSecond);
    gaps.update(page(1, 0, 0), 11 * kSecond);
    gaps.update(status, 20 * kSecond);
    EXPECT_TRUE(gaps.implausible());
    EXPECT_EQ(gaps.count(), 0u);
    EXPECT_EQ(gaps.total_ns(), 0u);
    EXPECT_NE(gaps.line(42).find("cannot be true"), std::string::npos) << gaps.line(42);
  }
}

}  // namespace
}  // namespace gpuprof::cli

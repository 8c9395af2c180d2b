// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/care_schedule.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>

#include "daemon/base/unique_fd.h"
#include "daemon/target/process.h"
#include "daemon/target/shim_channel.h"

namespace gpuprof::cli {
namespace {

constexpr uint64_t kTickNs = 20'000'000;
constexpr uint64_t kStartNs = 1'000'000'000;

// A shim's memfd of our own, and what the session keeps of it.
struct Target {
  UniqueFd memfd;
  std::optional<target::ShimChannel> channel;
  CareSchedule care;
  int reads = 0;
  int renewals = 0;

  void open(bool honest) {
    const ProcessId self = *target::process_id(static_cast<uint32_t>(::getpid()));
    memfd.reset(::memfd_create(GPUPROF_MEMFD_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(::ftruncate(memfd.get(), 65536), 0);
    ASSERT_EQ(::fcntl(memfd.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
    gpuprof_status_page page = {};
    page.magic = GPUPROF_STATUS_MAGIC;
    page.abi_version = GPUPROF_ABI_VERSION;
    page.owner_pid = self.pid;
    page.owner_start_ticks = self.start_ticks;
    page.state = GPUPROF_STATE_IDLE;
    ASSERT_EQ(::pwrite(memfd.get(), &page, sizeof page, 0), ssize_t{sizeof page});
    const std::string path =
        "/proc/" + std::to_string(self.pid) + "/fd/" + std::to_string(memfd.get());
    auto opened = target::ShimChannel::open_path(path, self);
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    channel = std::move(*opened);
    ASSERT_TRUE(channel->acquire("test").has_value());
    if (honest) return;
    const uint32_t odd = 1;
    ASSERT_EQ(::pwrite(memfd.get(), &odd, sizeof odd, offsetof(gpuprof_status_page, seq)), 4);
  }

  void tick(uint64_t now_ns) {
    const bool renew = care.take_renewal(now_ns);
    if (renew && channel->renew()) ++renewals;
    if (!care.read_due(now_ns, renew, false)) return;
    ++reads;
    if (!channel->read_status()) care.read_failed(now_ns);
  }
};

TEST(CareSchedule, AHalfWrittenPageDoesNotStallItsNeighbour) {
  Target hostile, honest;
  hostile.open(false);
  honest.open(true);
  const auto begin = std::chrono::steady_clock::now();
  for (uint64_t tick = 0; tick < 500; ++tick) {  // ten seconds of a session
    hostile.tick(kStartNs + tick * kTickNs);
    honest.tick(kStartNs + tick * kTickNs);
  }
  const auto took = std::chrono::steady_clock::now() - begin;
  // With a read of 50 ms at every tick it would be 25 s; the bound leaves room for a loaded
  // machine.
  EXPECT_LT(took, std::chrono::seconds(10));
  EXPECT_EQ(honest.reads, 500);
  EXPECT_EQ(honest.renewals, 20);
  EXPECT_EQ(hostile.reads, 20) << "it backs off";
  EXPECT_EQ(hostile.renewals, 20) << "a process that is only stopped keeps its lease";
}

TEST(CareSchedule, AnArmedTargetIsReadWhenItsLeaseIsRenewed) {
  CareSchedule care;
  EXPECT_TRUE(care.take_renewal(kStartNs));
  EXPECT_TRUE(care.read_due(kStartNs, true, true));
  EXPECT_FALSE(care.take_renewal(kStartNs + kTickNs));
  EXPECT_FALSE(care.read_due(kStartNs + kTickNs, false, true));
  EXPECT_TRUE(care.read_due(kStartNs + kTickNs, false, false));
  EXPECT_TRUE(care.take_renewal(kStartNs + CareSchedule::kIntervalNs));
}

// One that waits for its first launch for a minute is read as often as its lease is renewed; its
// begin would be known to a sixteenth of the wait.
TEST(CareSchedule, WhoDoesNotLaunchIsReadLessAndLessOften) {
  CareSchedule care;
  care.begin(kStartNs, 0);
  size_t in_first_second = 0, in_minute = 0;
  uint64_t last_ns = kStartNs;
  for (uint64_t now = kStartNs; now < kStartNs + 60'000'000'000; now += kTickNs) {
    const bool renewed = care.take_renewal(now);
    if (!care.read_due(now, renewed, false)) continue;
    EXPECT_LE(now - last_ns, (last_ns - kStartNs) / 16 + 2 * kTickNs);
    care.read_done(last_ns = now);
    ++in_minute;
    in_first_second += now < kStartNs + 1'000'000'000 ? 1 : 0;
  }
  EXPECT_GE(in_first_second, 25u);
  EXPECT_LE(in_minute, 320u);
}

// Hundreds are taken control of at a node's start, and their leases must not all be due at once.
TEST(CareSchedule, FirstRenewalsAreSpread) {
  size_t in_a_tick = 0;
  for (uint64_t index = 0; index < 200; ++index) {
    CareSchedule care;
    care.begin(kStartNs, index);
    EXPECT_FALSE(care.take_renewal(kStartNs));
    EXPECT_TRUE(CareSchedule(care).take_renewal(kStartNs + CareSchedule::kIntervalNs));
    in_a_tick += CareSchedule(care).take_renewal(kStartNs + kTickNs) ? 1 : 0;
  }
  EXPECT_EQ(in_a_tick, 8u);
}

}  // namespace
}  // namespace gpuprof::cli

// SPDX-License-Identifier: Apache-2.0
//
// Full rings and quotas: every record is delivered or told as lost, with the reason, to the record.
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "tests/e2e/probe_fixture.h"
#include "tests/e2e/probe_site.h"

namespace gpuprof::probe {
namespace {

class ProbeLoss : public ProbeE2e {
 protected:
  // Batches of `count` executions, from number `seq` on; returns the next number.
  uint64_t fire(uint64_t batches, uint32_t count, uint64_t seq = 0) {
    std::vector<gpuprof_exec_v1> execs(count);
    for (uint64_t b = 0; b < batches; b++) {
      for (uint32_t i = 0; i < count; i++) execs[i] = sample_exec(seq + i);
      probe_site_fire(GPUPROF_PROBE_EXEC, execs.data(), count, seq);
      seq += count;
    }
    return seq;
  }

  void begin(ProbeOptions options) {
    start(options);
    attach();
    watch_self();
  }

  [[nodiscard]] uint64_t exec_lost(LossReason reason) {
    return sink.lost[{GPUPROF_PROBE_EXEC, reason}];
  }
};
INSTANTIATE_TEST_SUITE_P(Modes, ProbeLoss, testing::ValuesIn(all_modes()), mode_name);

// How many windows of a second, which is what a quota is of, lie in the time since it was made.
class Stopwatch {
 public:
  [[nodiscard]] uint64_t windows() const {
    const auto seconds = std::chrono::floor<std::chrono::seconds>(Clock::now() - begin_);
    return 2 + static_cast<uint64_t>(seconds.count());
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin_ = Clock::now();
};

ProbeOptions small_rings() {
  ProbeOptions options;
  options.events_ring_bytes = 256 << 10;
  options.stacks_ring_bytes = 64 << 10;
  options.reorder_window = std::chrono::milliseconds(1);
  return options;
}

TEST_P(ProbeLoss, FullRingIsCountedToTheRecord) {
  begin(small_rings());
  uint64_t sent = fire(40, 250);  // 1.1 MB
  poll();
  ASSERT_LT(sink.execs.size(), sent);
  ASSERT_GT(sink.execs.size(), 0u);
  sent = fire(1, 3, sent);  // reveals the gap
  poll();
  usleep(2000);
  poll();
  EXPECT_EQ(sink.execs.size() + exec_lost(LossReason::kRingFull), sent);
  EXPECT_EQ(sink.lost_of(GPUPROF_PROBE_EXEC), exec_lost(LossReason::kRingFull));
  const ProbeCounters counters = session->counters();
  EXPECT_EQ(counters.bpf[GPUPROF_BPF_EVENTS_FULL_RECORDS], exec_lost(LossReason::kRingFull));
  EXPECT_EQ(counters.bpf[GPUPROF_BPF_EVENTS_FULL] * 250, exec_lost(LossReason::kRingFull));
}

TEST_P(ProbeLoss, LossesAfterTheLastRecordAreToldAtTheEnd) {
  begin(small_rings());
  const uint64_t sent = fire(40, 250);
  session->flush();
  EXPECT_EQ(sink.execs.size() + exec_lost(LossReason::kRingFull), sent);
  session->flush();  // told once
  EXPECT_EQ(sink.execs.size() + sink.lost_of(GPUPROF_PROBE_EXEC), sent);
}

TEST_P(ProbeLoss, ForgettingAProcessSettlesIt) {
  begin(small_rings());
  const uint64_t sent = fire(40, 250);
  poll();
  session->forget(sink.last_process);
  EXPECT_EQ(sink.execs.size() + exec_lost(LossReason::kRingFull), sent);
  session->flush();
  EXPECT_EQ(sink.execs.size() + sink.lost_of(GPUPROF_PROBE_EXEC), sent);
}

TEST_P(ProbeLoss, ProcessQuotaIsEnforcedAndCounted) {
  ProbeOptions options;
  options.process_bytes_per_s = 100'000;
  options.reorder_window = std::chrono::milliseconds(1);
  begin(options);
  const Stopwatch watch;
  const uint64_t sent = fire(200, 100);  // 2.2 MB
  const uint64_t windows = watch.windows();
  session->flush();
  EXPECT_EQ(sink.execs.size() + exec_lost(LossReason::kQuota), sent);
  EXPECT_LE(sink.execs.size() * sizeof(gpuprof_exec_v1), windows * options.process_bytes_per_s);
  EXPECT_GT(sink.execs.size(), 0u);
  EXPECT_EQ(session->counters().bpf[GPUPROF_BPF_QUOTA_RECORDS], exec_lost(LossReason::kQuota));
}

TEST_P(ProbeLoss, UserQuotaCoversAllProcessesOfAUser) {
  ProbeOptions options;
  options.user_bytes_per_s = 100'000;
  begin(options);
  const Stopwatch watch;
  for (int i = 0; i < 10; i++) {
    ASSERT_EQ(in_child([&] {
                fire(20, 100);
                return 0;
              }),
              0);
  }
  const uint64_t windows = watch.windows();
  session->flush();
  EXPECT_LE(sink.execs.size() * sizeof(gpuprof_exec_v1), windows * options.user_bytes_per_s);
  EXPECT_EQ(sink.execs.size() + exec_lost(LossReason::kQuota), 10u * 20 * 100);
}

TEST_P(ProbeLoss, DefaultsLoseNothingAt200kExecutionsASecond) {
  begin({});
  uint64_t sent = 0;
  for (int tick = 0; tick < 10; tick++) {  // 100 ms each: what the shim flushes at once
    sent = fire(80, 250, sent);
    poll();
  }
  session->flush();
  EXPECT_EQ(sink.execs.size(), sent);
  EXPECT_TRUE(sink.lost.empty());
}

TEST_P(ProbeLoss, LaunchesOutliveTheirStacks) {
  begin(small_rings());
  for (uint32_t i = 0; i < 100; i++) {
    const gpuprof_launch_v1 launch = sample_launch(i);
    probe_site_fire(GPUPROF_PROBE_LAUNCH, &launch, 1, i);
  }
  poll();
  session->flush();
  ASSERT_EQ(sink.launches.size(), 100u);
  const ProbeCounters counters = session->counters();
  EXPECT_GT(counters.stacks_lost, 0u);
  EXPECT_GT(counters.stacks_delivered, 0u);
  EXPECT_EQ(counters.stacks_lost, counters.bpf[GPUPROF_BPF_STACKS_FULL]);
  EXPECT_EQ(counters.stacks_lost + counters.stacks_delivered, 100u);
  EXPECT_TRUE(sink.lost.empty());
}

TEST_P(ProbeLoss, StacksCannotSpendTheQuotaOfExecutions) {
  ProbeOptions options;
  options.process_bytes_per_s = 60'000;
  begin(options);
  for (uint32_t i = 0; i < 200; i++) {
    const gpuprof_launch_v1 launch = sample_launch(i);
    probe_site_fire(GPUPROF_PROBE_LAUNCH, &launch, 1, i);
  }
  fire(1, 100);
  session->flush();
  EXPECT_EQ(sink.execs.size(), 100u);
  EXPECT_EQ(sink.launches.size() + sink.lost_of(GPUPROF_PROBE_LAUNCH), 200u);
  EXPECT_GT(session->counters().bpf[GPUPROF_BPF_STACKS_QUOTA], 0u);
}

// Four threads take numbers and fire as the shim does; the reader runs beside them.
TEST_P(ProbeLoss, ThreadsRaceTheReaderWithoutLoss) {
  // Room for all of it (8,000 batches of the 4 KiB class): the race is tested here, not the
  // reader's speed on a busy machine.
  ProbeOptions options;
  options.events_ring_bytes = 64u << 20;
  begin(options);
  std::atomic<uint64_t> numbers{0};
  std::atomic<int> running{4};
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; t++) {
    threads.emplace_back([&] {
      const std::vector<gpuprof_exec_v1> execs(16, sample_exec(1));
      for (int i = 0; i < 2000; i++) {
        const uint64_t seq = numbers.fetch_add(16);
        probe_site_fire(GPUPROF_PROBE_EXEC, execs.data(), 16, seq);
      }
      running--;
    });
  }
  while (running > 0) {
    ASSERT_TRUE(session->poll(std::chrono::milliseconds(5)));
  }
  threads.clear();
  session->flush();
  EXPECT_EQ(sink.execs.size(), 4u * 2000 * 16);
  EXPECT_TRUE(sink.lost.empty());
  EXPECT_EQ(session->counters().duplicate_records, 0u);
}

// A thread whose records lie on a page that somebody withholds (userfaultfd here, FUSE for any
// user) waits by itself: no ring record is reserved meanwhile, so nobody else waits.
TEST_P(ProbeLoss, APageThatDoesNotComeBlocksNobody) {
  const UniqueFd uffd(static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC)));
  if (!uffd.valid() && errno == ENOSYS) GTEST_SKIP() << "kernel without CONFIG_USERFAULTFD";
  ASSERT_TRUE(uffd.valid()) << std::strerror(errno);
  uffdio_api api{.api = UFFD_API, .features = 0, .ioctls = 0};
  ASSERT_EQ(ioctl(uffd.get(), UFFDIO_API, &api), 0);
  constexpr size_t kPage = 4096;
  void* page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  uffdio_register area{};
  area.range = {.start = reinterpret_cast<uintptr_t>(page), .len = kPage};
  area.mode = UFFDIO_REGISTER_MODE_MISSING;
  ASSERT_EQ(ioctl(uffd.get(), UFFDIO_REGISTER, &area), 0);

  begin({});
  std::atomic<bool> returned{false};
  std::jthread waiting([&] {
    probe_site_fire(GPUPROF_PROBE_EXEC, page, 2, 0);
    returned = true;
  });
  const bool sleepable = session->describe().find("not sleepable") == std::string::npos;
  if (sleepable) {  // the thread is in the fault, which is what can be read
    pollfd fault = {uffd.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&fault, 1, 60'000), 1);
    EXPECT_FALSE(returned);
  } else {
    while (!returned) std::this_thread::yield();
  }
  fire(1, 3, 2);
  poll();
  EXPECT_EQ(sink.execs.size(), 3u);

  alignas(4096) static uint8_t contents[kPage];
  const gpuprof_exec_v1 execs[2] = {sample_exec(1), sample_exec(2)};
  std::memcpy(contents, execs, sizeof(execs));
  uffdio_copy fill{};
  fill.dst = reinterpret_cast<uintptr_t>(page);
  fill.src = reinterpret_cast<uintptr_t>(contents);
  fill.len = kPage;
  ASSERT_EQ(ioctl(uffd.get(), UFFDIO_COPY, &fill), 0);
  waiting.join();
  session->flush();
  EXPECT_EQ(sink.execs.size(), sleepable ? 5u : 3u);
  EXPECT_EQ(exec_lost(LossReason::kFault), sleepable ? 0u : 2u);
  munmap(page, kPage);
}

}  // namespace
}  // namespace gpuprof::probe

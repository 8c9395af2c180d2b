// SPDX-License-Identifier: Apache-2.0
//
// The memfd as the daemon sees it, growth under limits, and what a child may not do.
#include "shim/core/memfd.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim/core/clock.h"
#include "shim/core/owner.h"
#include "shim/core/probes.h"
#include "shim/core/self.h"
#include "shim/core/status.h"
#include "tests/unit/shim/core_site_hook.h"

namespace gpuprof::shim {
namespace {

constexpr uint64_t kModuleBytes = 4u << 20;

class Memfd : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    ASSERT_EQ(own_process(), Status::kOk);
    set_state(GPUPROF_STATE_IDLE, GPUPROF_REASON_NONE, "before the page");
    count_drop(GPUPROF_DROP_CUPTI, 11);
    ASSERT_EQ(channel().create(kModuleBytes), Status::kOk);
    ASSERT_EQ(install_fork_handler(), Status::kOk);
  }
  static gpuprof_status_page status() {
    gpuprof_status_page page{};
    EXPECT_EQ(pread(channel().fd(), &page, sizeof page, 0), static_cast<ssize_t>(sizeof page));
    return page;
  }
  static gpuprof_module_entry entry(uint32_t index) {
    gpuprof_module_entry e{};
    EXPECT_EQ(pread(channel().fd(), &e, sizeof e, GPUPROF_MODULES_OFFSET + index * sizeof e),
              static_cast<ssize_t>(sizeof e));
    return e;
  }
  // Runs `body` in a child made by `make`; its exit status.
  template <typename Make, typename Body>
  static int in_child(Make make, Body body) {
    const pid_t pid = make();
    if (pid == 0) _exit(body());
    int wait_status = 0;
    EXPECT_EQ(waitpid(pid, &wait_status, 0), pid);
    EXPECT_TRUE(WIFEXITED(wait_status));
    return WEXITSTATUS(wait_status);
  }
};

TEST_F(Memfd, FileIsSealedHighCloexecAndSized) {
  const int fd = channel().fd();
  EXPECT_GE(fd, kMemfdMinFd);
  EXPECT_EQ(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  EXPECT_TRUE(fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK);
  EXPECT_NE(ftruncate(fd, 4096), 0);
  struct stat info;
  ASSERT_EQ(fstat(fd, &info), 0);
  EXPECT_TRUE(S_ISREG(info.st_mode));
  EXPECT_EQ(info.st_nlink, 0u);
  const gpuprof_status_page page = status();
  EXPECT_EQ(static_cast<uint64_t>(info.st_size), page.copies_offset + page.copies_bytes);
  // Every page exists already: a write to any of them can fail no more.
  EXPECT_GE(static_cast<uint64_t>(info.st_blocks) * 512, static_cast<uint64_t>(info.st_size));
  char link[64] = {};
  ASSERT_GT(readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), link, sizeof link - 1), 0);
  EXPECT_EQ(std::string(link), "/memfd:gpu-profiled (deleted)");
}

TEST_F(Memfd, HeadOfTheStatusPageIsComplete) {
  const gpuprof_status_page page = status();
  EXPECT_EQ(page.magic, GPUPROF_STATUS_MAGIC);
  EXPECT_EQ(page.abi_version, GPUPROF_ABI_VERSION);
  EXPECT_EQ(page.seq % 2, 0u);
  EXPECT_EQ(page.owner_pid, static_cast<uint32_t>(getpid()));
  std::ifstream stat("/proc/self/stat");
  std::string text, field;
  std::getline(stat, text);
  text = text.substr(text.rfind(')') + 2);
  for (int i = 3; i <= 22; ++i) {
    field = text.substr(0, text.find(' '));
    text = text.substr(text.find(' ') + 1);
  }
  EXPECT_EQ(page.owner_start_ticks, std::stoull(field));
  EXPECT_EQ(page.module_capacity, GPUPROF_MODULE_CAPACITY);
  EXPECT_GE(page.drop_totals[GPUPROF_DROP_CUPTI], 11u);  // counted before the page was there
  EXPECT_GE(page.copies_offset,
            GPUPROF_MODULES_OFFSET + GPUPROF_MODULE_CAPACITY * sizeof(gpuprof_module_entry));
}

TEST_F(Memfd, StateTextAndTotalsReachThePage) {
  const std::string longer(2000, 'x');
  set_state(GPUPROF_STATE_BUSY, GPUPROF_REASON_OTHER_CLIENT, longer.c_str());
  gpuprof_status_page page = status();
  EXPECT_EQ(page.state, uint32_t{GPUPROF_STATE_BUSY});
  EXPECT_EQ(page.reason, uint32_t{GPUPROF_REASON_OTHER_CLIENT});
  EXPECT_EQ(strlen(page.reason_text), sizeof page.reason_text - 1);
  set_state(GPUPROF_STATE_TRACING, GPUPROF_REASON_NONE, nullptr);
  set_tier(GPUPROF_TIER_TRACE);
  set_epoch(7);
  count_arm();
  set_cupti(130001, "/opt/libcupti.so.13", GPUPROF_CUPTI_LOADED);
  set_driver(13000, GPUPROF_LIBCUDA_COMPAT, "/usr/lib/libcuda.so.1", "580.159.04");
  set_buffers_outstanding(3);
  count_launch(true);
  publish_heartbeat(12345);
  page = status();
  EXPECT_EQ(page.reason_text[0], '\0');
  EXPECT_EQ(page.reason_text[sizeof page.reason_text - 2], '\0');
  EXPECT_EQ(page.tier, uint32_t{GPUPROF_TIER_TRACE});
  EXPECT_EQ(page.epoch, 7u);
  EXPECT_EQ(page.arms, 1u);
  EXPECT_EQ(page.cupti_version, 130001u);
  EXPECT_STREQ(page.cupti_path, "/opt/libcupti.so.13");
  EXPECT_STREQ(page.kernel_driver_version, "580.159.04");
  EXPECT_EQ(page.buffers_outstanding, 3u);
  EXPECT_EQ(page.heartbeat_ns, 12345u);
  EXPECT_GE(page.drop_totals[GPUPROF_DROP_LAUNCHES_SEEN], 1u);
  EXPECT_EQ(current_state(), GPUPROF_STATE_TRACING);
  set_state(GPUPROF_STATE_COUNT, GPUPROF_REASON_NONE, nullptr);
  EXPECT_EQ(current_state(), GPUPROF_STATE_TRACING);
}

TEST_F(Memfd, TimesWithoutRecordingReachThePage) {
  set_recording(true, 1000);
  EXPECT_EQ(status().off_since_ns, 0u);
  EXPECT_EQ(status().off_ns, 0u) << "before the first arm nothing is missing";
  set_recording(false, 1500);
  EXPECT_EQ(status().off_since_ns, 1500u);
  set_recording(true, 1800);
  EXPECT_EQ(status().off_since_ns, 0u);
  EXPECT_EQ(status().off_ns, 300u);
  set_recording(false, 2000);
  set_recording(true, 2100);
  EXPECT_EQ(status().off_ns, 400u);
}

TEST_F(Memfd, SeqlockNeverShowsHalfAChange) {
  set_state(GPUPROF_STATE_IDLE, GPUPROF_REASON_NONE, "idle");
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int i = 0; !stop; ++i) {
      const bool even = i % 2 == 0;
      set_state(even ? GPUPROF_STATE_IDLE : GPUPROF_STATE_BUSY,
                even ? GPUPROF_REASON_NONE : GPUPROF_REASON_OTHER_CLIENT, even ? "idle" : "busy");
    }
  });
  int stable = 0;
  for (int i = 0; i < 20'000; ++i) {
    // As the daemon does: a copy by pread between two looks at seq.
    const uint32_t before = status().seq;
    const gpuprof_status_page page = status();
    if (before % 2 != 0 || status().seq != before || page.seq != before) continue;
    ++stable;
    const bool idle = page.state == GPUPROF_STATE_IDLE;
    ASSERT_STREQ(page.reason_text, idle ? "idle" : "busy");
    ASSERT_EQ(page.reason, uint32_t{idle ? GPUPROF_REASON_NONE : GPUPROF_REASON_OTHER_CLIENT});
  }
  stop = true;
  writer.join();
  EXPECT_GT(stable, 0);
}

TEST_F(Memfd, SmallModulesAreCopiedLargeOnesReferenced) {
  const std::string small(1000, 's');
  const std::vector<char> large(kModuleCopyMaxBytes + 1, 'l');
  const uint64_t hash = hash_image(small.data(), small.size());
  const uint32_t a = channel().modules().append(hash, small.data(), small.size(), 77);
  const uint32_t b = channel().modules().append(2, large.data(), large.size(), 78);
  ASSERT_NE(a, kNoModule);
  EXPECT_EQ(b, a + 1);
  const gpuprof_module_entry copied = entry(a), present = entry(b);
  EXPECT_EQ(copied.state, uint32_t{GPUPROF_MODULE_COPIED});
  EXPECT_EQ(copied.hash, hash);
  EXPECT_EQ(copied.load_time_ns, 77u);
  std::string back(small.size(), '\0');
  ASSERT_EQ(pread(channel().fd(), back.data(), back.size(), static_cast<off_t>(copied.copy_offset)),
            static_cast<ssize_t>(back.size()));
  EXPECT_EQ(back, small);
  EXPECT_EQ(present.state, uint32_t{GPUPROF_MODULE_PRESENT});
  EXPECT_EQ(present.address, reinterpret_cast<uintptr_t>(large.data()));
  EXPECT_EQ(present.copy_offset, 0u);
  // On unload the large one is copied; another is given up.
  EXPECT_EQ(channel().modules().on_unload(large.data(), large.size(), true), b);
  EXPECT_EQ(entry(b).state, uint32_t{GPUPROF_MODULE_COPIED});
  EXPECT_EQ(channel().modules().on_unload(small.data(), small.size(), false), a);
  EXPECT_EQ(entry(a).state, uint32_t{GPUPROF_MODULE_COPIED});
  const uint32_t c = channel().modules().append(3, large.data(), large.size(), 79);
  EXPECT_EQ(channel().modules().on_unload(large.data(), large.size(), false), c);
  EXPECT_EQ(entry(c).state, uint32_t{GPUPROF_MODULE_GONE});
  EXPECT_EQ(channel().modules().on_unload(&copied, 5, true), kNoModule);
}

TEST_F(Memfd, HashIsXxh3) {
  EXPECT_EQ(hash_image("", 0),
            0x2d06800538d394c2u);  // XXH3_64bits of nothing, from its specification
}

TEST_F(Memfd, NoGrowthPastRlimitFsize) {
  rlimit old;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  struct stat info;
  ASSERT_EQ(fstat(channel().fd(), &info), 0);
  const int status = in_child(fork, [&] {
    // A child with its own file: the parent's is gone for it.
    const int fd = memfd_create("test", MFD_ALLOW_SEALING);
    rlimit limit{1 << 20, old.rlim_max};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
    if (grow_file(fd, 0, 1 << 20) != Status::kOk) return 2;
    return grow_file(fd, 1 << 20, 2 << 20) == Status::kLimit ? 0 : 3;  // SIGXFSZ if it tried
  });
  EXPECT_EQ(status, 0);
}

TEST_F(Memfd, ChildGoesInertAndLeavesTheParentsPageAlone) {
  const gpuprof_status_page before = status();
  const int fd = channel().fd();
  const int result = in_child(fork, [&] {
    if (owned() || owned_by_caller()) return 1;
    if (fcntl(fd, F_GETFD) != -1 || errno != EBADF) return 2;
    if (channel().status_page() != nullptr || channel().fd() != -1) return 3;
    set_state(GPUPROF_STATE_DECLINED, GPUPROF_REASON_FORKED, "child");
    count_drop(GPUPROF_DROP_CUPTI);
    publish_heartbeat(1);
    if (channel().modules().append(1, &fd, sizeof fd, 1) != kNoModule) return 4;
    if (current_state() != GPUPROF_STATE_INERT) return 5;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      if (line.find("memfd:gpu-profiled") != std::string::npos) return 6;
    }
    return 0;
  });
  EXPECT_EQ(result, 0);
  const gpuprof_status_page after = status();
  EXPECT_EQ(memcmp(&before, &after, sizeof before), 0);
  EXPECT_TRUE(owned_by_caller());
}

// A daemon that closes all numbers, and then opens a file of its own under ours.
TEST_F(Memfd, AnotherFileUnderOurNumberIsNeverGrown) {
  Channel lost;
  ASSERT_EQ(lost.create(kModuleBytes), Status::kOk);
  const int fd = lost.fd();
  const int theirs = memfd_create("theirs", MFD_CLOEXEC);
  ASSERT_EQ(close(fd), 0);
  ASSERT_EQ(dup2(theirs, fd), fd);
  const uint64_t room = lost.modules().room();
  const uint64_t full = drop_total(GPUPROF_DROP_MODULE_COPY_FULL);
  const std::vector<char> image(kModuleCopyMaxBytes, 'i');
  for (uint64_t at = 0; at <= room; at += image.size()) {  // beyond the end: SIGBUS if it wrote
    (void)lost.modules().grow_if_needed();
    ASSERT_NE(lost.modules().append(1, image.data(), image.size(), 1), kNoModule);
  }
  EXPECT_EQ(lost.modules().grow_if_needed(), Status::kUnsupported);
  EXPECT_EQ(lost.modules().room(), room);
  EXPECT_EQ(drop_total(GPUPROF_DROP_MODULE_COPY_FULL) - full, 1u);
  EXPECT_EQ(lost.fd(), -1);
  struct stat info;
  ASSERT_EQ(fstat(theirs, &info), 0);
  EXPECT_EQ(info.st_size, 0);
  lost.abandon_in_child();
  EXPECT_EQ(fstat(fd, &info), 0) << "the application's file was closed";
  close(fd);
  close(theirs);
}

TEST_F(Memfd, ChildLeavesAnotherFileUnderOurNumberOpen) {
  const int fd = channel().fd();
  const int kept = dup(fd);
  const int theirs = memfd_create("theirs", MFD_CLOEXEC);
  ASSERT_EQ(dup2(theirs, fd), fd);
  const int result = in_child(fork, [&] { return fcntl(fd, F_GETFD) == -1 ? 1 : 0; });
  EXPECT_EQ(result, 0);
  ASSERT_EQ(dup3(kept, fd, O_CLOEXEC), fd);
  EXPECT_EQ(channel().fd(), fd);
  close(kept);
  close(theirs);
}

// exit() in a signal handler that interrupted a change of the status on its own thread. The fault
// is in the text, which is read with the lock held.
struct Interruption {
  char* text;
  uint64_t waited_ns;
  uint32_t state_then;
  bool happened;
};
Interruption interruption;

void change_status_in_handler(int) {
  alarm(60);  // waiting for itself would never end
  const uint64_t begin_ns = monotonic_ns();
  set_tier(GPUPROF_TIER_OFF);
  set_state(GPUPROF_STATE_INERT, GPUPROF_REASON_EXITING, nullptr);
  publish_heartbeat(begin_ns);
  interruption.waited_ns = monotonic_ns() - begin_ns;
  interruption.state_then = channel().status_page()->state;
  interruption.happened = true;
  alarm(0);
  mprotect(interruption.text, 4096, PROT_READ | PROT_WRITE);
}

TEST_F(Memfd, ChangeThatInterruptsAChangeOnItsThreadDoesNotWaitForIt) {
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  interruption.text = static_cast<char*>(page);
  strcpy(interruption.text, "interrupted");
  ASSERT_EQ(mprotect(page, 4096, PROT_NONE), 0);
  struct sigaction handler {
  }, old;
  handler.sa_handler = change_status_in_handler;
  ASSERT_EQ(sigaction(SIGSEGV, &handler, &old), 0);
  set_tier(GPUPROF_TIER_TRACE);
  set_state(GPUPROF_STATE_TRACING, GPUPROF_REASON_NONE, interruption.text);
  sigaction(SIGSEGV, &old, nullptr);
  ASSERT_TRUE(interruption.happened);
  EXPECT_LT(interruption.waited_ns, 30'000'000'000u);
  EXPECT_EQ(interruption.state_then, uint32_t{GPUPROF_STATE_INERT});
  // The newer one holds, also in the page, which is whole.
  EXPECT_EQ(current_state(), GPUPROF_STATE_INERT);
  EXPECT_EQ(status().state, uint32_t{GPUPROF_STATE_INERT});
  EXPECT_EQ(status().reason, uint32_t{GPUPROF_REASON_EXITING});
  EXPECT_STREQ(status().reason_text, "");
  EXPECT_EQ(status().tier, uint32_t{GPUPROF_TIER_OFF});
  EXPECT_EQ(status().seq % 2, 0u);
  set_state(GPUPROF_STATE_IDLE, GPUPROF_REASON_NONE, "after it");
  EXPECT_EQ(status().state, uint32_t{GPUPROF_STATE_IDLE});
  EXPECT_STREQ(status().reason_text, "after it");
  munmap(page, 4096);
}

TEST_F(Memfd, RawCloneIsCaughtWithoutAnAtforkHandler) {
  const gpuprof_status_page before = status();
  testing::SiteRecorder<GPUPROF_PROBE_EXEC, gpuprof_exec_v1> recorder(gpuprof_fire_exec_v1);
  const uint64_t emitted_before = emitted(GPUPROF_PROBE_EXEC);
  const auto raw_fork = [] { return static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)); };
  const int result = in_child(raw_fork, [&] {
    gpuprof_exec_v1 record{};
    if (emit(GPUPROF_PROBE_EXEC, &record, 1) != 0) return 1;
    if (emitted(GPUPROF_PROBE_EXEC) != emitted_before) return 2;
    count_drop(GPUPROF_DROP_CUPTI);
    set_state(GPUPROF_STATE_DECLINED, GPUPROF_REASON_FORKED, "child");
    if (channel().modules().append(1, &record, sizeof record, 1) != kNoModule) return 3;
    return enabled(GPUPROF_PROBE_EXEC) ? 4 : 0;
  });
  EXPECT_EQ(result, 0);
  const gpuprof_status_page after = status();
  EXPECT_EQ(memcmp(&before, &after, sizeof before), 0);
}

// Last: they fill the table for good.
TEST_F(Memfd, ZLimitOfCopiesIsCounted) {
  const std::vector<char> image(kModuleCopyMaxBytes, 'i');
  const uint64_t full = drop_total(GPUPROF_DROP_MODULE_COPY_FULL);
  uint32_t copied = 0;
  for (int i = 0; i < 100; ++i) {  // 6.25 MiB into 4
    (void)channel().modules().grow_if_needed();
    const uint32_t index = channel().modules().append(1, image.data(), image.size(), 1);
    copied += entry(index).state == GPUPROF_MODULE_COPIED;
  }
  EXPECT_GE(copied, 60u);
  EXPECT_LE(copied * kModuleCopyMaxBytes, kModuleBytes);
  EXPECT_EQ(drop_total(GPUPROF_DROP_MODULE_COPY_FULL) - full, 100 - copied);
  struct stat info;
  ASSERT_EQ(fstat(channel().fd(), &info), 0);
  EXPECT_EQ(static_cast<uint64_t>(info.st_size), status().copies_offset + kModuleBytes);
}

TEST_F(Memfd, ZTableFillsFromManyThreadsAndOverflowIsCounted) {
  const uint64_t full = drop_total(GPUPROF_DROP_MODULE_TABLE_FULL);
  const uint32_t before = channel().modules().count();
  constexpr uint32_t kThreads = 4, kEach = 3000;
  std::atomic<uint32_t> accepted{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint32_t i = 0; i < kEach; ++i) {
        accepted += channel().modules().append(t * kEach + i + 1, nullptr, 0, 5) != kNoModule;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(accepted, GPUPROF_MODULE_CAPACITY - before);
  EXPECT_EQ(drop_total(GPUPROF_DROP_MODULE_TABLE_FULL) - full, kThreads * kEach - accepted);
  for (uint32_t i = before; i < GPUPROF_MODULE_CAPACITY; ++i) {
    ASSERT_EQ(entry(i).state, uint32_t{GPUPROF_MODULE_PRESENT});
    ASSERT_NE(entry(i).hash, 0u);
  }
}

}  // namespace
}  // namespace gpuprof::shim

// SPDX-License-Identifier: Apache-2.0
//
// What comes in from outside: environment, control page, lease; and the log.
#include "shim/core/knobs.h"

#include <atomic>
#include <csignal>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim/core/control.h"
#include "shim/core/lease.h"
#include "shim/core/log.h"

namespace gpuprof::shim {
namespace {

Knobs parse(std::vector<std::string> variables, bool secure = false) {
  std::vector<char*> pointers;
  for (auto& variable : variables) pointers.push_back(variable.data());
  pointers.push_back(nullptr);
  return parse_knobs(pointers.data(), secure);
}

TEST(Knobs, DefaultsWithoutVariables) {
  const Knobs k = parse({"PATH=/bin", "GPU_PROFILED=1"});
  EXPECT_FALSE(k.disabled);
  EXPECT_EQ(k.arm_tier, uint32_t{GPUPROF_TIER_OFF});
  EXPECT_EQ(k.subscribe, SubscribeMode::kOnDemand);
  EXPECT_TRUE(k.modules);
  EXPECT_EQ(k.module_bytes, 64u << 20);
  EXPECT_STREQ(k.unknown, "");
}

// Else anybody could have a set-user-id program append to a file of its owner, or run his library.
TEST(Knobs, ASecureProgramLetsNobodyNameFiles) {
  const Knobs k = parse(
      {"GPU_PROFILED_LOG=/root/x", "GPU_PROFILED_CUPTI_PATH=/tmp/mine.so", "GPU_PROFILED_SEED=42"},
      true);
  EXPECT_STREQ(k.log, "");
  EXPECT_STREQ(k.cupti_path, "");
  EXPECT_EQ(k.seed, 42u);
  EXPECT_STREQ(k.unknown, "GPU_PROFILED_LOG=/root/x,GPU_PROFILED_CUPTI_PATH=/tmp/mine.so");
}

TEST(Knobs, EveryVariableIsRead) {
  const Knobs k = parse({"GPU_PROFILED_DISABLE=1", "GPU_PROFILED_ARM=trace",
                         "GPU_PROFILED_SUBSCRIBE=eager", "GPU_PROFILED_MODULES=off",
                         "GPU_PROFILED_MODULE_BYTES=3M", "GPU_PROFILED_CUPTI_PATH=/x/libcupti.so",
                         "GPU_PROFILED_LOG=stderr", "GPU_PROFILED_STACK_RATE=all",
                         "GPU_PROFILED_SEED=42", "GPU_PROFILED_DEBUG_FALLBACK=a"});
  EXPECT_TRUE(k.disabled);
  EXPECT_EQ(k.arm_tier, uint32_t{GPUPROF_TIER_TRACE});
  EXPECT_EQ(k.subscribe, SubscribeMode::kEager);
  EXPECT_FALSE(k.modules);
  EXPECT_EQ(k.module_bytes, 3u << 20);
  EXPECT_STREQ(k.cupti_path, "/x/libcupti.so");
  EXPECT_STREQ(k.log, "stderr");
  EXPECT_EQ(k.stack_rate, UINT32_MAX);
  EXPECT_EQ(k.seed, 42u);
  EXPECT_STREQ(k.unknown, "");
  EXPECT_EQ(parse({"GPU_PROFILED_ARM=continuous"}).arm_tier, uint32_t{GPUPROF_TIER_CONTINUOUS});
}

TEST(Knobs, UnknownNamesAndRefusedValuesAreListedAndChangeNothing) {
  const Knobs k =
      parse({"GPU_PROFILED_TYPO=1", "GPU_PROFILED_ARM=yes", "GPU_PROFILED_MODULE_BYTES=-1",
             "GPU_PROFILED_STACK_RATE=0", "GPU_PROFILED_SEED=99999999999999999999999",
             "GPU_PROFILED_LOG=", "GPU_PROFILED_B\x01=", "GPU_PROFILED_MODULES=ON\n"});
  EXPECT_STREQ(k.unknown,
               "GPU_PROFILED_TYPO,GPU_PROFILED_ARM=yes,GPU_PROFILED_MODULE_BYTES=-1,"
               "GPU_PROFILED_STACK_RATE=0,GPU_PROFILED_SEED=99999999999999999999999,"
               "GPU_PROFILED_B?,GPU_PROFILED_MODULES=ON?");
  EXPECT_EQ(k.arm_tier, uint32_t{GPUPROF_TIER_OFF});
  EXPECT_EQ(k.module_bytes, 64u << 20);
  EXPECT_TRUE(k.modules);
  EXPECT_EQ(k.seed, 0u);
}

TEST(Knobs, TheListOfUnknownsIsCutNotOverrun) {
  std::vector<std::string> many;
  for (int i = 0; i < 100; ++i) many.push_back("GPU_PROFILED_UNKNOWN_" + std::to_string(i) + "=");
  const Knobs k = parse(many);
  EXPECT_EQ(strlen(k.unknown), sizeof k.unknown - 1);
  EXPECT_STREQ(k.unknown + strlen(k.unknown) - 3, "...");
  const Knobs one = parse({"GPU_PROFILED_" + std::string(1000, 'X') + "=1", "GPU_PROFILED_Y=1"});
  EXPECT_EQ(one.unknown[0], '.');
  const Knobs path = parse({"GPU_PROFILED_CUPTI_PATH=" + std::string(600, 'p')});
  EXPECT_STREQ(path.cupti_path, "");
  EXPECT_NE(path.unknown[0], '\0');
}

TEST(Knobs, TableNamesEveryVariableOnce) {
  size_t count = 0;
  const KnobInfo* table = knob_table(&count);
  std::vector<std::string> variables;
  for (size_t i = 0; i < count; ++i) {
    ASSERT_NE(table[i].meaning[0], '\0');
    for (size_t j = 0; j < i; ++j) EXPECT_STRNE(table[i].name, table[j].name);
    // A known name is never reported as a bare unknown name.
    variables = {std::string(table[i].name) + "=\x7f"};
    const std::string unknown = parse(variables).unknown;
    EXPECT_NE(unknown, table[i].name);
  }
}

gpuprof_control_page valid_page() {
  gpuprof_control_page page{};
  page.magic = GPUPROF_CONTROL_MAGIC;
  page.abi_version = GPUPROF_ABI_VERSION;
  page.tier = GPUPROF_TIER_TRACE;
  page.lease_serial = 5;
  page.lease_ms = 1000;
  page.controller_pid = 77;
  page.stack_rate = 123;
  strcpy(page.controller_name, "me\x1b[31m");
  return page;
}

TEST(Control, ReadsAValidPageAndSanitisesTheName) {
  const gpuprof_control_page page = valid_page();
  ControlRequest request;
  ASSERT_EQ(read_control(&page, &request), ControlRead::kValid);
  EXPECT_EQ(request.tier, GPUPROF_TIER_TRACE);
  EXPECT_EQ(request.stack_rate, 123u);
  EXPECT_EQ(request.lease_serial, 5u);
  EXPECT_STREQ(request.controller_name, "me?[31m");
  EXPECT_EQ(read_control(nullptr, &request), ControlRead::kAbsent);
  const gpuprof_control_page zero{};
  EXPECT_EQ(read_control(&zero, &request), ControlRead::kAbsent);
}

TEST(Control, AnythingUnknownIsInvalidAndLeavesNoRequest) {
  using Edit = void (*)(gpuprof_control_page&);
  const Edit edits[] = {
      [](gpuprof_control_page& p) { p.magic ^= 1; },
      [](gpuprof_control_page& p) { p.abi_version = 2; },
      [](gpuprof_control_page& p) { p.tier = 4; },
      [](gpuprof_control_page& p) { p.tier = UINT32_MAX; },
      [](gpuprof_control_page& p) { p.pc_period = 4; },
      [](gpuprof_control_page& p) { p.pc_period = 32; },
      [](gpuprof_control_page& p) { p.pc_duty = GPUPROF_PC_DUTY_MAX + 1; },
      [](gpuprof_control_page& p) { p.lease_serial = 0; },
      [](gpuprof_control_page& p) { p.lease_ms = 0; },
      [](gpuprof_control_page& p) { p.lease_ms = GPUPROF_LEASE_MS_MAX + 1; },
      [](gpuprof_control_page& p) { p.pc_grant = GPUPROF_PC_GRANT_COUNT; },
      [](gpuprof_control_page& p) { p.pc_grant_count = GPUPROF_PC_GPUS_MAX + 1; },
  };
  for (const Edit edit : edits) {
    gpuprof_control_page page = valid_page();
    edit(page);
    ControlRequest request;
    request.tier = GPUPROF_TIER_SERIALIZED;
    EXPECT_EQ(read_control(&page, &request), ControlRead::kInvalid) << &edit - edits;
    EXPECT_EQ(request.tier, GPUPROF_TIER_OFF);
  }
  gpuprof_control_page unterminated = valid_page();
  memset(unterminated.controller_name, 'n', sizeof unterminated.controller_name);
  ControlRequest request;
  ASSERT_EQ(read_control(&unterminated, &request), ControlRead::kValid);
  EXPECT_EQ(strlen(request.controller_name), 63u);
}

TEST(Control, AGrantIsEveryGpuOrTheOnesThatAreListed) {
  const uint8_t first[16] = {1}, second[16] = {2};
  gpuprof_control_page page = valid_page();
  ControlRequest request;
  EXPECT_FALSE(request.pc_grant.covers(first)) << "without a page nothing is granted";
  ASSERT_EQ(read_control(&page, &request), ControlRead::kValid);
  EXPECT_TRUE(request.pc_grant.covers(first)) << "a daemon that knows of no grants";
  page.pc_grant = GPUPROF_PC_GRANT_LISTED;
  page.pc_grant_serial = 9;
  page.pc_grant_count = 1;
  memcpy(page.pc_gpus[0].bytes, first, sizeof first);
  memcpy(page.pc_gpus[1].bytes, second, sizeof second);
  ASSERT_EQ(read_control(&page, &request), ControlRead::kValid);
  EXPECT_EQ(request.pc_grant.serial, 9u);
  EXPECT_TRUE(request.pc_grant.covers(first));
  EXPECT_FALSE(request.pc_grant.covers(second)) << "not within the count";
  const PcGrant before = request.pc_grant;
  memcpy(page.pc_gpus[0].bytes, second, sizeof second);
  ASSERT_EQ(read_control(&page, &request), ControlRead::kValid);
  EXPECT_FALSE(before == request.pc_grant);
}

TEST(Control, AWriterThatDiedHalfWayIsTornNotAnEndlessLoop) {
  gpuprof_control_page page = valid_page();
  page.seq = 7;
  ControlRequest request;
  EXPECT_EQ(read_control(&page, &request), ControlRead::kTorn);
}

TEST(Control, ConcurrentWritesAreSeenWholeOrNotAtAll) {
  static gpuprof_control_page page;
  page = valid_page();
  page.stack_rate = page.process_rate = 1;
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    std::atomic_ref<uint32_t> seq(page.seq);
    for (uint32_t i = 2; !stop; ++i) {
      seq.exchange(seq.load() + 1, std::memory_order_seq_cst);
      std::atomic_ref<uint32_t>(page.stack_rate).store(i);
      std::atomic_ref<uint32_t>(page.process_rate).store(i);
      std::atomic_ref<uint64_t>(page.sampler_seed).store(i);
      seq.store(seq.load() + 1, std::memory_order_release);
      if (i % 64 == 0) std::this_thread::yield();
    }
  });
  int valid = 0;
  for (int i = 0; i < 200'000 && valid < 20'000; ++i) {
    ControlRequest request;
    const ControlRead read = read_control(&page, &request);
    if (read == ControlRead::kTorn) continue;
    ASSERT_EQ(read, ControlRead::kValid);
    ++valid;
    ASSERT_EQ(request.stack_rate, request.process_rate);
    if (request.sampler_seed != 0) {
      ASSERT_EQ(request.sampler_seed, request.stack_rate);
    }
  }
  stop = true;
  writer.join();
  EXPECT_GT(valid, 0);
}

constexpr uint64_t kMs = 1'000'000;

ControlRequest wish(gpuprof_tier tier, uint64_t serial, uint32_t controller = 1) {
  ControlRequest request;
  request.tier = tier;
  request.lease_serial = serial;
  request.lease_ms = 1000;
  request.controller_pid = controller;
  return request;
}

TEST(Lease, RunsFromTheFirstSightOfASerialAndIsRenewedByANewOne) {
  Lease lease;
  const auto a = wish(GPUPROF_TIER_TRACE, 10), b = wish(GPUPROF_TIER_TRACE, 11);
  EXPECT_EQ(lease.update(ControlRead::kAbsent, {}, 0).tier, GPUPROF_TIER_OFF);
  EXPECT_TRUE(lease.update(ControlRead::kValid, a, 100 * kMs).new_controller);
  EXPECT_EQ(lease.deadline_ns(), 1100 * kMs);
  EXPECT_EQ(lease.update(ControlRead::kValid, a, 1099 * kMs).tier, GPUPROF_TIER_TRACE);
  const Demand expired = lease.update(ControlRead::kValid, a, 1100 * kMs);
  EXPECT_EQ(expired.tier, GPUPROF_TIER_OFF);
  EXPECT_EQ(expired.reason, GPUPROF_REASON_LEASE_EXPIRED);
  EXPECT_EQ(lease.deadline_ns(), UINT64_MAX);
  // The same serial is dead for good; a new one is a new lease.
  EXPECT_EQ(lease.update(ControlRead::kValid, a, 1200 * kMs).tier, GPUPROF_TIER_OFF);
  const Demand again = lease.update(ControlRead::kValid, b, 1300 * kMs);
  EXPECT_EQ(again.tier, GPUPROF_TIER_TRACE);
  EXPECT_FALSE(again.new_controller);
  EXPECT_EQ(again.reason, GPUPROF_REASON_NONE);
}

TEST(Lease, TornAndAbsentPagesLetTheLeaseRunOnAndOut) {
  Lease lease;
  (void)lease.update(ControlRead::kValid, wish(GPUPROF_TIER_TRACE, 1), 0);
  EXPECT_EQ(lease.update(ControlRead::kTorn, {}, 500 * kMs).tier, GPUPROF_TIER_TRACE);
  EXPECT_EQ(lease.update(ControlRead::kTorn, {}, 1000 * kMs).tier, GPUPROF_TIER_OFF);
}

TEST(Lease, ReleaseAndInvalidPagesEndItAtOnce) {
  Lease lease;
  (void)lease.update(ControlRead::kValid, wish(GPUPROF_TIER_TRACE, 1), 0);
  Demand off = lease.update(ControlRead::kValid, wish(GPUPROF_TIER_OFF, 1), 1);
  EXPECT_EQ(off.tier, GPUPROF_TIER_OFF);
  EXPECT_EQ(off.reason, GPUPROF_REASON_RELEASED);
  (void)lease.update(ControlRead::kValid, wish(GPUPROF_TIER_TRACE, 2), 2);
  off = lease.update(ControlRead::kInvalid, {}, 3);
  EXPECT_EQ(off.tier, GPUPROF_TIER_OFF);
  EXPECT_EQ(off.reason, GPUPROF_REASON_RELEASED);
}

TEST(Lease, GrantAtInitLastsUntilAControllerTakesOver) {
  Lease lease;
  lease.grant(GPUPROF_TIER_TRACE, kInitLeaseMs, 0);
  const Demand granted = lease.update(ControlRead::kAbsent, {}, 1999 * kMs);
  EXPECT_EQ(granted.tier, GPUPROF_TIER_TRACE);
  EXPECT_FALSE(granted.request.pc_grant.all) << "another process may sample the GPUs";
  const Demand expired = lease.update(ControlRead::kAbsent, {}, 2000 * kMs);
  EXPECT_EQ(expired.reason, GPUPROF_REASON_LEASE_EXPIRED);
  lease.grant(GPUPROF_TIER_TRACE, kInitLeaseMs, 0);
  EXPECT_TRUE(
      lease.update(ControlRead::kValid, wish(GPUPROF_TIER_TRACE, 1), 1900 * kMs).new_controller);
  EXPECT_EQ(lease.update(ControlRead::kAbsent, {}, 2500 * kMs).tier, GPUPROF_TIER_TRACE);
}

TEST(Lease, OtherWishesUnderTheSameSerialDoNotProlongIt) {
  Lease lease;
  (void)lease.update(ControlRead::kValid, wish(GPUPROF_TIER_TRACE, 1), 0);
  auto changed = wish(GPUPROF_TIER_TRACE, 1);
  changed.stack_rate = 9;
  EXPECT_EQ(lease.update(ControlRead::kValid, changed, 900 * kMs).request.stack_rate, 9u);
  EXPECT_EQ(lease.update(ControlRead::kValid, changed, 1000 * kMs).tier, GPUPROF_TIER_OFF);
}

TEST(Log, IsSilentThenWritesWholeLinesToItsFile) {
  EXPECT_FALSE(log_enabled());
  log_line("nobody hears %d", 1);
  const std::string path = ::testing::TempDir() + "gpuprof_log_" + std::to_string(getpid());
  open_log(path.c_str());
  ASSERT_TRUE(log_enabled());
  log_line("hello %s", "world");
  log_line("%s", std::string(5000, 'x').c_str());
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  const std::string expected = "gpu-profiled[" + std::to_string(getpid()) + "]: hello world\n";
  ASSERT_EQ(text.str().substr(0, expected.size()), expected);
  EXPECT_EQ(text.str().size(), expected.size() + 1023);
  EXPECT_EQ(text.str().back(), '\n');
  struct stat info;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  unlink(path.c_str());
}

// Wait status of a child in which complain() writes to `fd` as stderr, ended by SIGALRM after 5 s.
// It exits with 3 if a signal is left pending or blocked.
int complain_to(int fd, rlim_t file_limit = RLIM_INFINITY) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(5);
    for (const int number : {SIGPIPE, SIGXFSZ}) signal(number, SIG_DFL);
    const rlimit limit{file_limit, RLIM_INFINITY};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0 || dup2(fd, STDERR_FILENO) < 0) _exit(2);
    for (int i = 0; i < 3; ++i) complain("declined");
    sigset_t left;
    sigpending(&left);
    const bool pending = sigismember(&left, SIGPIPE) == 1 || sigismember(&left, SIGXFSZ) == 1;
    sigprocmask(SIG_BLOCK, nullptr, &left);
    _exit(pending || sigismember(&left, SIGPIPE) == 1 || sigismember(&left, SIGXFSZ) == 1 ? 3 : 0);
  }
  int status = -1;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return status;
}

TEST(Log, PipeWithoutAReaderKillsNobody) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  EXPECT_EQ(complain_to(ends[1]), 0);
  close(ends[1]);
}

TEST(Log, FullPipeBlocksNobody) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
  const std::string page(4096, 'p');
  while (write(ends[1], page.data(), page.size()) > 0) {
  }
  ASSERT_EQ(fcntl(ends[1], F_SETFL, 0), 0);
  EXPECT_EQ(complain_to(ends[1]), 0);
  close(ends[0]);
  close(ends[1]);
}

TEST(Log, FileSizeLimitKillsNobody) {
  const int file = memfd_create("stderr", MFD_CLOEXEC);
  EXPECT_EQ(complain_to(file, 10), 0);
  struct stat info;
  ASSERT_EQ(fstat(file, &info), 0);
  EXPECT_EQ(info.st_size, 10);  // it did write, up to the limit
  close(file);
}

TEST(Log, SignalThatWasPendingBeforeStaysPending) {
  const pid_t pid = fork();
  if (pid == 0) {
    sigset_t pipe_signal, pending;
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    sigprocmask(SIG_BLOCK, &pipe_signal, nullptr);
    raise(SIGPIPE);
    int ends[2];
    if (pipe(ends) != 0 || dup2(ends[1], STDERR_FILENO) < 0) _exit(2);
    complain("heard");
    char text[256];
    if (read(ends[0], text, sizeof text) <= 0) _exit(4);
    sigpending(&pending);
    _exit(sigismember(&pending, SIGPIPE) == 1 ? 0 : 3);
  }
  int status = -1;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
}

TEST(Log, FifoThatNobodyReadsIsNotWaitedFor) {
  const std::string path = ::testing::TempDir() + "gpuprof_fifo_" + std::to_string(getpid());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(5);
    open_log(path.c_str());
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  unlink(path.c_str());
}

TEST(Log, WritesNothingIntoAnotherFileUnderItsNumber) {
  const std::string path = ::testing::TempDir() + "gpuprof_lost_log_" + std::to_string(getpid());
  open_log(path.c_str());
  int fd = -1;
  for (int number = 100; number < 200 && fd < 0; ++number) {
    char link[512] = {};
    const std::string name = "/proc/self/fd/" + std::to_string(number);
    if (readlink(name.c_str(), link, sizeof link - 1) > 0 && path == link) fd = number;
  }
  ASSERT_GE(fd, 0);
  const int theirs = memfd_create("theirs", MFD_CLOEXEC);
  ASSERT_EQ(dup2(theirs, fd), fd);
  log_line("for our file");
  complain("for stderr, %s", "and our file");
  struct stat info;
  ASSERT_EQ(fstat(theirs, &info), 0);
  EXPECT_EQ(info.st_size, 0);
  EXPECT_FALSE(log_enabled());
  close(fd);
  close(theirs);
  unlink(path.c_str());
}

}  // namespace
}  // namespace gpuprof::shim

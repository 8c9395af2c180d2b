// SPDX-License-Identifier: Apache-2.0
#include "daemon/target/shim_channel.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>

#include "daemon/target/process.h"

namespace gpuprof::target {
namespace {

ProcessId self() { return *process_id(static_cast<uint32_t>(::getpid())); }

gpuprof_status_page good_page() {
  gpuprof_status_page page = {};
  page.magic = GPUPROF_STATUS_MAGIC;
  page.abi_version = GPUPROF_ABI_VERSION;
  page.owner_pid = static_cast<uint32_t>(::getpid());
  page.owner_start_ticks = self().start_ticks;
  page.state = GPUPROF_STATE_IDLE;
  return page;
}

constexpr off_t kSize = 65536;

void fill(int fd, const gpuprof_status_page& page, off_t size = kSize) {
  ASSERT_EQ(::ftruncate(fd, size), 0);
  ASSERT_EQ(::pwrite(fd, &page, sizeof page, 0), ssize_t{sizeof page});
}

UniqueFd make_memfd(const gpuprof_status_page& page, int seals = F_SEAL_SHRINK,
                    off_t size = kSize) {
  UniqueFd fd(::memfd_create(GPUPROF_MEMFD_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  fill(fd.get(), page, size);
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

std::string path_of(const UniqueFd& fd) {
  return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(fd.get());
}

gpuprof_control_page control_of(const UniqueFd& fd) {
  gpuprof_control_page page = {};
  EXPECT_EQ(::pread(fd.get(), &page, sizeof page, GPUPROF_CONTROL_OFFSET), ssize_t{sizeof page});
  return page;
}

void expect_refused(const UniqueFd& fd, const char* why) {
  auto channel = ShimChannel::open_path(path_of(fd), self());
  ASSERT_FALSE(channel.has_value()) << "accepted: " << why;
  EXPECT_EQ(channel.error().code, Code::kCorrupt);
  EXPECT_NE(channel.error().message.find(why), std::string::npos) << channel.error().message;
}

TEST(ShimChannel, FindsTheMemfdByHintAndByName) {
  const UniqueFd fd = make_memfd(good_page());
  EXPECT_TRUE(ShimChannel::open(self(), fd.get()).has_value());
  EXPECT_TRUE(ShimChannel::open(self()).has_value());
  EXPECT_TRUE(ShimChannel::open(self(), 9999).has_value())
      << "a wrong hint must not end the search";
}

TEST(ShimChannel, NoMemfd) {
  auto channel = ShimChannel::open(self());
  ASSERT_FALSE(channel.has_value());
  EXPECT_EQ(channel.error().code, Code::kNoTarget);
  ProcessId other = self();
  ++other.start_ticks;
  EXPECT_EQ(ShimChannel::open(other).error().code, Code::kNotFound) << "a reused pid";
}

TEST(ShimChannel, FoundByItsMappingAfterTheApplicationClosedIt) {
  if (::geteuid() != 0) GTEST_SKIP() << "map_files needs CAP_CHECKPOINT_RESTORE";
  UniqueFd fd = make_memfd(good_page());
  void* address = ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  ASSERT_NE(address, MAP_FAILED);
  fd.reset();
  EXPECT_TRUE(ShimChannel::open(self()).has_value());
  ::munmap(address, kSize);
}

TEST(ShimChannel, RefusesWrongSeals) {
  expect_refused(make_memfd(good_page(), F_SEAL_GROW), "not sealed against shrinking");
  expect_refused(make_memfd(good_page(), F_SEAL_SHRINK | F_SEAL_WRITE), "sealed against writing");
  const UniqueFd unsealable(::memfd_create(GPUPROF_MEMFD_NAME, MFD_CLOEXEC));
  fill(unsealable.get(), good_page());
  expect_refused(unsealable, "not sealed against shrinking");
}

TEST(ShimChannel, RefusesBadContent) {
  gpuprof_status_page page = good_page();
  page.magic ^= 1;
  expect_refused(make_memfd(page), "wrong magic");
  page = good_page();
  page.owner_pid += 1;
  expect_refused(make_memfd(page), "another process");
  page = good_page();
  page.owner_start_ticks += 1;
  expect_refused(make_memfd(page), "another time");
  expect_refused(make_memfd(good_page(), F_SEAL_SHRINK, 4096), "size");
  page = good_page();
  page.abi_version = 2;
  const UniqueFd newer = make_memfd(page);
  auto channel = ShimChannel::open_path(path_of(newer), self());
  ASSERT_FALSE(channel.has_value());
  EXPECT_EQ(channel.error().code, Code::kUnsupported);
}

TEST(ShimChannel, RefusesOtherKindsOfFile) {
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  const UniqueFd read_end(fds[0]), write_end(fds[1]);
  expect_refused(read_end, "not a regular file");
  const UniqueFd null(::open("/dev/null", O_RDONLY));
  expect_refused(null, "not a regular file");
}

// A file with the right bytes that somebody else may not write; inotify sees every open for
// writing.
class DisguisedFile : public testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/gpuprof-memfd-XXXXXX";
    directory_ = ::mkdtemp(pattern);
    path_ = directory_ + "/memfd:gpu-profiled (deleted)";
    file_.reset(::open(path_.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
    fill(file_.get(), good_page());
    notify_.reset(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
    ASSERT_GE(::inotify_add_watch(notify_.get(), path_.c_str(), IN_CLOSE_WRITE | IN_MODIFY), 0);
  }
  void TearDown() override {
    char event[512];
    EXPECT_LT(::read(notify_.get(), event, sizeof event), 0)
        << "it was opened for writing or written";
    std::filesystem::remove_all(directory_);
  }
  std::string directory_, path_;
  UniqueFd file_, notify_;
};

TEST_F(DisguisedFile, RegularFile) {
  auto channel = ShimChannel::open_path(path_, self());
  ASSERT_FALSE(channel.has_value());
  EXPECT_NE(channel.error().message.find("a file with a name"), std::string::npos);
}

TEST_F(DisguisedFile, SymbolicLink) {
  const std::string link = directory_ + "/link";
  ASSERT_EQ(::symlink(path_.c_str(), link.c_str()), 0);
  EXPECT_EQ(ShimChannel::open_path(link, self()).error().code, Code::kCorrupt);
}

TEST_F(DisguisedFile, OpenedByTheTargetAndFoundByItsLinkText) {
  // The link text of this descriptor holds the memfd's name, and a bind mount can make it begin so.
  EXPECT_EQ(ShimChannel::open(self(), file_.get()).error().code, Code::kCorrupt);
}

TEST_F(DisguisedFile, UnlinkedFile) {
  const UniqueFd unlinked(::open(directory_.c_str(), O_TMPFILE | O_RDWR, 0600));
  ASSERT_TRUE(unlinked.valid());
  fill(unlinked.get(), good_page());
  expect_refused(unlinked, "not on the memfd mount");
  const UniqueFd on_tmpfs(::open("/dev/shm", O_TMPFILE | O_RDWR, 0600));
  ASSERT_TRUE(on_tmpfs.valid());
  fill(on_tmpfs.get(), good_page());
  expect_refused(on_tmpfs, "not on the memfd mount");
}

TEST_F(DisguisedFile, BindMountWithAMemfdsLinkText) {
  if (::geteuid() != 0) GTEST_SKIP() << "mounting needs root";
  // In a mount namespace of its own the child's descriptor reads "/memfd:gpu-profiled (deleted)".
  int ready[2], stop[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(stop), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(stop[1]);
    const std::string name = "/memfd:gpu-profiled (deleted)";
    bool ok = ::unshare(CLONE_NEWNS) == 0 &&
              ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
              ::mount("tmpfs", "/mnt", "tmpfs", 0, nullptr) == 0;
    const std::string place = "/mnt" + name;
    ok = ok && ::close(::open(place.c_str(), O_CREAT | O_RDONLY, 0600)) == 0 &&
         ::mount(path_.c_str(), place.c_str(), nullptr, MS_BIND, nullptr) == 0 &&
         ::chroot("/mnt") == 0;
    const int fd = ok ? ::open(name.c_str(), O_RDONLY) : -1;
    [[maybe_unused]] ssize_t done = ::write(ready[1], &fd, sizeof fd);
    char byte = 0;
    done = ::read(stop[0], &byte, 1);
    ::_exit(0);
  }
  int fd = -1;
  ASSERT_EQ(::read(ready[0], &fd, sizeof fd), ssize_t{sizeof fd});
  EXPECT_GE(fd, 0) << "the disguise could not be built";
  auto id = process_id(static_cast<uint32_t>(child));
  ASSERT_TRUE(id.has_value());
  auto channel = ShimChannel::open(*id, fd);
  ASSERT_FALSE(channel.has_value());
  EXPECT_EQ(channel.error().code, Code::kCorrupt) << channel.error().message;
  ::close(stop[1]);
  ::waitpid(child, nullptr, 0);
}

TEST(ShimChannel, ReadsAndSanitisesTheStatus) {
  gpuprof_status_page page = good_page();
  page.state = GPUPROF_STATE_DECLINED;
  page.reason = GPUPROF_REASON_NO_CUPTI;
  page.probe_totals[GPUPROF_PROBE_EXEC] = 7;
  std::strcpy(page.reason_text, "no libcupti\x1b[31m");
  std::memset(page.cupti_path, 'x', sizeof page.cupti_path);  // no NUL
  const UniqueFd fd = make_memfd(page);
  auto channel = ShimChannel::open_path(path_of(fd), self());
  ASSERT_TRUE(channel.has_value()) << channel.error().message;
  auto status = channel->read_status();
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->state, GPUPROF_STATE_DECLINED);
  EXPECT_EQ(status->probe_totals[GPUPROF_PROBE_EXEC], 7u);
  EXPECT_EQ(status->reason_text, "no libcupti?[31m");
  EXPECT_EQ(status->cupti_path, std::string(512, 'x'));

  const uint32_t bad = 77;
  ASSERT_EQ(::pwrite(fd.get(), &bad, sizeof bad, offsetof(gpuprof_status_page, state)), 4);
  EXPECT_EQ(channel->read_status()->state, GPUPROF_STATE_INVALID);
}

TEST(ShimChannel, ReadsAndValidatesPcSampling) {
  gpuprof_status_page page = good_page();
  page.pc_state = GPUPROF_PC_REFUSED;
  page.pc_reason = GPUPROF_PC_REASON_PRIVILEGE;
  page.pc_period = 14;
  page.pc_contexts = 2;
  page.pc_counters[GPUPROF_PC_COUNT_SAMPLES] = 41;
  page.pc_counters[GPUPROF_PC_COUNT_SKIPPED_GUARD] = 7;
  std::strcpy(page.pc_reason_text, "Enable answered 35\nload the module with X");
  const UniqueFd fd = make_memfd(page);
  auto channel = ShimChannel::open_path(path_of(fd), self());
  ASSERT_TRUE(channel.has_value()) << channel.error().message;
  const PcStatus pc = channel->read_status()->pc;
  EXPECT_EQ(pc.state, GPUPROF_PC_REFUSED);
  EXPECT_EQ(pc.reason, GPUPROF_PC_REASON_PRIVILEGE);
  EXPECT_EQ(pc.period, 14u);
  EXPECT_EQ(pc.contexts, 2u);
  EXPECT_EQ(pc.counters[GPUPROF_PC_COUNT_SAMPLES], 41u);
  EXPECT_EQ(pc.counters[GPUPROF_PC_COUNT_SKIPPED_GUARD], 7u);
  EXPECT_EQ(pc.reason_text, "Enable answered 35?load the module with X");

  page.pc_state = GPUPROF_PC_STATE_COUNT;
  page.pc_reason = UINT32_MAX;
  page.pc_period = 32;
  std::memset(page.pc_reason_text, '\xff', sizeof page.pc_reason_text);
  fill(fd.get(), page);
  const PcStatus bad = channel->read_status()->pc;
  EXPECT_EQ(bad.state, GPUPROF_PC_OFF);
  EXPECT_EQ(bad.reason, GPUPROF_PC_REASON_NONE);
  EXPECT_EQ(bad.period, 0u);
  EXPECT_EQ(bad.reason_text, std::string(512, '?'));
}

TEST(ShimChannel, ReadsClaimsOnGpusAndWritesTheGrant) {
  gpuprof_status_page page = good_page();
  const UniqueFd fd = make_memfd(page);
  auto channel = ShimChannel::open_path(path_of(fd), self());
  ASSERT_TRUE(channel.has_value()) << channel.error().message;
  EXPECT_FALSE(channel->read_claims()->heeds_grants) << "a shim older than grants";
  page.pc_grant_modes = GPUPROF_PC_GRANT_COUNT;
  page.pc_grant_serial = 9;
  page.pc_wanted = 0xffff0001u;
  page.pc_held = 0x10002u;
  page.pc_gpus[1].bytes[15] = 7;
  fill(fd.get(), page);
  const auto claims = channel->read_claims();
  ASSERT_TRUE(claims.has_value());
  EXPECT_TRUE(claims->heeds_grants);
  EXPECT_EQ(claims->serial, 9u);
  EXPECT_EQ(claims->wanted, 1u) << "there are 16 places";
  EXPECT_EQ(claims->held, 2u);
  EXPECT_EQ(claims->gpus[1][15], 7u);
  EXPECT_EQ(channel->read_status()->pc.claims.serial, 9u);

  ASSERT_TRUE(channel->acquire("test").has_value());
  ControlRequest request;
  request.tier = GPUPROF_TIER_CONTINUOUS;
  ASSERT_TRUE(channel->request(request).has_value());
  EXPECT_EQ(control_of(fd).pc_grant, static_cast<uint32_t>(GPUPROF_PC_GRANT_ALL));
  const uint64_t lease = control_of(fd).lease_serial;
  ASSERT_TRUE(channel->grant({GPUPROF_PC_GRANT_LISTED, 33, {claims->gpus[1]}}).has_value());
  ASSERT_TRUE(channel->renew().has_value());
  const gpuprof_control_page control = control_of(fd);
  EXPECT_EQ(control.tier, static_cast<uint32_t>(GPUPROF_TIER_CONTINUOUS));
  EXPECT_GT(control.lease_serial, lease);
  EXPECT_EQ(control.pc_grant, static_cast<uint32_t>(GPUPROF_PC_GRANT_LISTED));
  EXPECT_EQ(control.pc_grant_serial, 33u);
  EXPECT_EQ(control.pc_grant_count, 1u);
  EXPECT_EQ(control.pc_gpus[0].bytes[15], 7u);
  ASSERT_TRUE(channel->grant({GPUPROF_PC_GRANT_LISTED, 34, std::vector<GpuUuid>(40)}).has_value());
  EXPECT_EQ(control_of(fd).pc_grant_count, GPUPROF_PC_GPUS_MAX);
}

TEST(ShimChannel, PatienceIsForTheProcessNotForEachMemfd) {
  gpuprof_status_page page = good_page();
  page.seq = 1;
  std::vector<UniqueFd> half_written;
  for (int i = 0; i < 16; ++i) half_written.push_back(make_memfd(page));
  auto fastest = std::chrono::steady_clock::duration::max();
  for (int attempt = 0; attempt < 5; ++attempt) {  // a single one tells of the machine's load too
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(ShimChannel::open(self()).error().code, Code::kUnavailable);
    fastest = std::min(fastest, std::chrono::steady_clock::now() - begin);
  }
  // One patience is 50 pauses of a millisecond, 16 of them were 800.
  EXPECT_LT(fastest, std::chrono::milliseconds(600));
}

TEST(ShimChannel, TornStatusIsNotRead) {
  const UniqueFd fd = make_memfd(good_page());
  auto channel = ShimChannel::open_path(path_of(fd), self());
  ASSERT_TRUE(channel.has_value());
  const uint32_t odd = 1;
  ASSERT_EQ(::pwrite(fd.get(), &odd, sizeof odd, offsetof(gpuprof_status_page, seq)), 4);
  auto status = channel->read_status();
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, Code::kUnavailable);
  // A target that keeps it so must not hold up the renewal of the others' leases.
  // Twenty that wait take a second, on any machine; on one that has time twenty that do not wait
  // take next to nothing, and one attempt of five finds it so.
  auto fastest = std::chrono::steady_clock::duration::max();
  for (int attempt = 0; attempt < 5; ++attempt) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 20; ++i) EXPECT_FALSE(channel->read_status().has_value());
    fastest = std::min(fastest, std::chrono::steady_clock::now() - begin);
  }
  EXPECT_LT(fastest, std::chrono::milliseconds(500));
}

TEST(ShimChannel, WritesTheControlPageAsASeqlock) {
  const UniqueFd fd = make_memfd(good_page());
  auto channel = ShimChannel::open_path(path_of(fd), self());
  ASSERT_TRUE(channel.has_value());
  EXPECT_FALSE(channel->renew().has_value()) << "without the lock";
  ASSERT_TRUE(channel->acquire("test controller").has_value());
  EXPECT_EQ(control_of(fd).magic, 0u) << "taking the lock arms nothing";

  ControlRequest request;
  request.tier = GPUPROF_TIER_CONTINUOUS;
  request.pc_period = 12;
  request.pc_duty = 25;
  request.stack_rate = 17;
  request.lease_ms = 1234;
  request.sampler_seed = 99;
  ASSERT_TRUE(channel->request(request).has_value());
  const gpuprof_control_page first = control_of(fd);
  EXPECT_EQ(first.magic, GPUPROF_CONTROL_MAGIC);
  EXPECT_EQ(first.seq % 2, 0u);
  EXPECT_EQ(first.tier, uint32_t{GPUPROF_TIER_CONTINUOUS});
  EXPECT_EQ(first.pc_period, 12u);
  EXPECT_EQ(first.pc_duty, 25u);
  EXPECT_EQ(first.stack_rate, 17u);
  EXPECT_EQ(first.lease_ms, 1234u);
  EXPECT_EQ(first.sampler_seed, 99u);
  EXPECT_EQ(first.controller_pid, static_cast<uint32_t>(::getpid()));
  EXPECT_STREQ(first.controller_name, "test controller");

  ASSERT_TRUE(channel->renew().has_value());
  const gpuprof_control_page second = control_of(fd);
  EXPECT_EQ(second.seq, first.seq + 2);
  EXPECT_NE(second.lease_serial, first.lease_serial);
  EXPECT_EQ(second.tier, first.tier);
  EXPECT_EQ(second.pc_period, first.pc_period);
  ASSERT_TRUE(channel->release().has_value());
  EXPECT_EQ(control_of(fd).tier, uint32_t{GPUPROF_TIER_OFF});
}

TEST(ShimChannel, GoesOnAfterAControllerThatDiedWhileWriting) {
  const UniqueFd fd = make_memfd(good_page());
  gpuprof_control_page left = {};
  left.seq = 41;
  left.lease_serial = 7;
  ASSERT_EQ(::pwrite(fd.get(), &left, sizeof left, GPUPROF_CONTROL_OFFSET), ssize_t{sizeof left});
  auto channel = ShimChannel::open_path(path_of(fd), self());
  ASSERT_TRUE(channel.has_value());
  ASSERT_TRUE(channel->acquire("next").has_value());
  ASSERT_TRUE(channel->request({}).has_value());
  EXPECT_EQ(control_of(fd).seq, 44u);
  EXPECT_EQ(control_of(fd).lease_serial, 8u)
      << "a serial that the shim has seen would renew nothing";
}

TEST(ShimChannel, SecondControllerIsRefusedByName) {
  const UniqueFd fd = make_memfd(good_page());
  auto first = ShimChannel::open_path(path_of(fd), self());
  auto second = ShimChannel::open_path(path_of(fd), self());
  ASSERT_TRUE(first.has_value() && second.has_value());
  ASSERT_TRUE(first->acquire("night shift").has_value());
  ASSERT_TRUE(first->request({}).has_value());
  auto holder = second->controller();
  ASSERT_TRUE(holder.has_value() && *holder);
  EXPECT_EQ((*holder)->pid, static_cast<uint32_t>(::getpid()));
  EXPECT_FALSE(*first->controller()) << "one's own lock is in nobody's way";
  auto refused = second->acquire("day shift");
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Code::kUnavailable);
  EXPECT_NE(refused.error().message.find("night shift (pid " + std::to_string(::getpid()) + ")"),
            std::string::npos)
      << refused.error().message;
  EXPECT_STREQ(control_of(fd).controller_name, "night shift");
  { const ShimChannel gone = std::move(*first); }
  EXPECT_TRUE(second->acquire("day shift").has_value()) << "the lock goes with its holder";
}

}  // namespace
}  // namespace gpuprof::target

// SPDX-License-Identifier: Apache-2.0
#include "daemon/target/process.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>

#include <algorithm>
#include <span>
#include <vector>

namespace gpuprof::target {
namespace {

constexpr const char* kTail =
    " 1 2 3 -1 4194304 100 0 0 0 5 6 0 0 20 0 1 0 987654 1000000 200 18446744073709551615 1 1 0";

TEST(ParseStat, ReadsParentAndStart) {
  const auto stat = parse_stat(std::string("4242 (python3) S 17") + kTail);
  ASSERT_TRUE(stat.has_value());
  EXPECT_EQ(stat->pid, 4242u);
  EXPECT_EQ(stat->parent, 17u);
  EXPECT_EQ(stat->state, 'S');
  EXPECT_EQ(stat->start_ticks, 987654u);
  EXPECT_EQ(stat->comm, "python3");
}

TEST(ParseStat, CommandNameMayHoldAnything) {
  const auto stat = parse_stat(std::string("7 (a) R 1 (b\n) S 17") + kTail);
  ASSERT_TRUE(stat.has_value());
  EXPECT_EQ(stat->comm, "a) R 1 (b?");
  EXPECT_EQ(stat->parent, 17u);
}

TEST(ParseStat, RefusesWhatIsShort) {
  EXPECT_FALSE(parse_stat("").has_value());
  EXPECT_FALSE(parse_stat("7 (a) S 1 2 3").has_value());
  EXPECT_FALSE(parse_stat("x (a) S 1").has_value());
  EXPECT_FALSE(parse_stat("7 (a").has_value());
}

TEST(ProcessId, OfOurselvesAndOfNobody) {
  const auto self = process_id(static_cast<uint32_t>(::getpid()));
  ASSERT_TRUE(self.has_value());
  EXPECT_GT(self->start_ticks, 0u);
  const auto none = process_id(INT32_MAX);
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code, Code::kNotFound);
  EXPECT_EQ(none.error().message, "no such process: 2147483647");
}

TEST(Descendants, FindsChildAndGrandchild) {
  int ready[2], stop[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(stop), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(stop[1]);
    const pid_t grandchild = ::fork();
    char byte = 0;
    if (grandchild != 0) [[maybe_unused]]
      ssize_t put = ::write(ready[1], &grandchild, sizeof grandchild);
    [[maybe_unused]] const ssize_t got = ::read(stop[0], &byte, 1);
    if (grandchild != 0) ::waitpid(grandchild, nullptr, 0);
    ::_exit(0);
  }
  pid_t grandchild = 0;
  ASSERT_EQ(::read(ready[0], &grandchild, sizeof grandchild), ssize_t{sizeof grandchild});
  const auto found = descendants(static_cast<uint32_t>(::getpid()));
  const auto at = [&](pid_t pid) {
    return std::find(found.begin(), found.end(), static_cast<uint32_t>(pid));
  };
  EXPECT_NE(at(child), found.end());
  EXPECT_NE(at(grandchild), found.end());
  EXPECT_LT(at(child), at(grandchild));
  EXPECT_EQ(at(::getpid()), found.end());
  // Each once, also where a root is another one's child; a number that is another process's now is
  // none.
  const ProcessId self = *process_id(static_cast<uint32_t>(::getpid()));
  const std::vector<ProcessId> roots = {
      self,
      *process_id(static_cast<uint32_t>(grandchild)),
      {static_cast<uint32_t>(child), self.start_ticks + 1'000'000}};
  std::vector<uint32_t> tree;
  for (const ProcessStat& stat : process_tree(roots)) tree.push_back(stat.pid);
  for (const pid_t pid : {::getpid(), child, grandchild})
    EXPECT_EQ(std::count(tree.begin(), tree.end(), static_cast<uint32_t>(pid)), 1) << pid;
  EXPECT_TRUE(process_tree(std::span(&roots[2], 1)).empty());
  ::close(stop[1]);
  ::waitpid(child, nullptr, 0);
}

TEST(Pidfd, TellsOfTheExitAndKnowsReusedNumbers) {
  int stop[2];
  ASSERT_EQ(::pipe(stop), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(stop[1]);
    char byte = 0;
    [[maybe_unused]] const ssize_t got = ::read(stop[0], &byte, 1);
    ::_exit(0);
  }
  auto id = process_id(static_cast<uint32_t>(child));
  ASSERT_TRUE(id.has_value());
  auto pidfd = open_pidfd(*id);
  ASSERT_TRUE(pidfd.has_value());
  ProcessId other = *id;
  ++other.start_ticks;
  EXPECT_FALSE(open_pidfd(other).has_value());
  pollfd poll_fd = {pidfd->get(), POLLIN, 0};
  EXPECT_EQ(::poll(&poll_fd, 1, 0), 0);
  ::close(stop[1]);
  EXPECT_EQ(::poll(&poll_fd, 1, 5000), 1);
  ::waitpid(child, nullptr, 0);
}

TEST(ParseMapping, ReadsTheFields) {
  const auto mapping = parse_mapping(
      "7f00a000-7f00c000 r-xp 00001000 fe:10 1234                       /opt/x y/libfoo.so "
      "(deleted)");
  ASSERT_TRUE(mapping.has_value());
  EXPECT_EQ(mapping->start, 0x7f00a000u);
  EXPECT_EQ(mapping->offset, 0x1000u);
  EXPECT_EQ(mapping->inode, 1234u);
  EXPECT_TRUE(mapping->executable);
  EXPECT_EQ(mapping->path, "/opt/x y/libfoo.so (deleted)");
  EXPECT_EQ(mapping->file_name(), "libfoo.so");
  EXPECT_EQ(mapping->map_files_name(), "7f00a000-7f00c000");
}

TEST(ParseMapping, RefusesNonsense) {
  EXPECT_FALSE(parse_mapping("").has_value());
  EXPECT_FALSE(parse_mapping("7f00c000-7f00a000 r-xp 0 0:0 0").has_value());
  EXPECT_FALSE(parse_mapping("zz-7f r-xp 0 0:0 0").has_value());
}

TEST(Environment, OfAProcess) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::execle("/bin/sleep", "sleep", "30", nullptr,
             std::array<const char*, 3>{"CUDA=1", "CUDA_INJECTION64_PATH=/a=b", nullptr}.data());
    ::_exit(1);
  }
  const auto pid = static_cast<uint32_t>(child);
  for (int i = 0; i < 500; ++i) {  // until the exec is through
    auto stat = process_stat(pid);
    if (stat && stat->comm == "sleep") break;
    ::usleep(10'000);
  }
  auto value = environment_value(pid, "CUDA_INJECTION64_PATH");
  ASSERT_TRUE(value.has_value()) << value.error().message;
  EXPECT_EQ(*value, std::optional<std::string>("/a=b"));
  EXPECT_EQ(*environment_value(pid, "CUDA_INJECTION64"), std::nullopt);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST(InnermostPid, IsOursOutsideNamespaces) {
  EXPECT_TRUE(innermost_pid(static_cast<uint32_t>(::getpid())).has_value());
  EXPECT_FALSE(innermost_pid(INT32_MAX).has_value());
  EXPECT_TRUE(same_time_namespace(static_cast<uint32_t>(::getpid())));
}

}  // namespace
}  // namespace gpuprof::target

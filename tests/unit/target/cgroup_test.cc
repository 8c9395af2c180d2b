// SPDX-License-Identifier: Apache-2.0
#include "daemon/target/cgroup.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace gpuprof::target {
namespace {

// The unified hierarchy alone, as a container with a cgroup namespace sees it.
constexpr std::string_view kUnified =
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
    "31 23 0:27 / /tmp rw - tmpfs tmpfs rw\n";
// The older hierarchies beside it, one of them mounted from a part of it, one in a place with a
// blank.
constexpr std::string_view kHybrid =
    "30 23 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "31 30 0:27 / /sys/fs/cgroup/memory rw shared:1 - cgroup cgroup rw,memory\n"
    "32 30 0:28 /docker/c0ffee /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
    "33 30 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
    "34 30 0:30 / /mnt/my\\040groups rw - cgroup cgroup rw,pids\n"
    "35 30 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
constexpr std::string_view kProcess =
    "11:pids:/\n"
    "9:memory:/kubepods/pod1/c1\n"
    "5:cpu,cpuacct:/docker/c0ffee/worker\n"
    "1:name=systemd:/system.slice/sshd.service\n"
    "0::/kubepods.slice/pod1.slice/c:1\n";

bool contains(std::string_view mounts, const std::string& path, uint64_t id) {
  auto cgroup = Cgroup::in(path, mounts, id);
  EXPECT_TRUE(cgroup.has_value()) << path;
  return cgroup && cgroup->contains_line_of(kProcess);
}

TEST(Cgroup, UnifiedHoldsWhatIsInItAndBelow) {
  EXPECT_TRUE(contains(kUnified, "/sys/fs/cgroup", 1));
  EXPECT_TRUE(contains(kUnified, "/sys/fs/cgroup/kubepods.slice", 7));
  EXPECT_TRUE(contains(kUnified, "/sys/fs/cgroup/kubepods.slice/pod1.slice/c:1", 8));
  EXPECT_FALSE(contains(kUnified, "/sys/fs/cgroup/kubepods.slice/pod1.slice/c:1/x", 9));
  EXPECT_FALSE(contains(kUnified, "/sys/fs/cgroup/kubepods", 10))
      << "a part of a name is no parent";
  EXPECT_EQ(Cgroup::in("/sys/fs/cgroup/kubepods.slice", kUnified, 7)->id(), 7u);
}

TEST(Cgroup, OlderHierarchiesAreToldApartByTheirControllers) {
  EXPECT_TRUE(contains(kHybrid, "/sys/fs/cgroup/memory/kubepods", 0));
  EXPECT_FALSE(contains(kHybrid, "/sys/fs/cgroup/memory/docker", 0));
  EXPECT_TRUE(contains(kHybrid, "/sys/fs/cgroup/cpu,cpuacct/worker", 0))
      << "the mount shows a part of the hierarchy";
  EXPECT_FALSE(contains(kHybrid, "/sys/fs/cgroup/cpu,cpuacct/docker", 0));
  EXPECT_TRUE(contains(kHybrid, "/sys/fs/cgroup/systemd/system.slice", 0));
  EXPECT_TRUE(contains(kHybrid, "/mnt/my groups", 0));
  EXPECT_TRUE(contains(kHybrid, "/sys/fs/cgroup/unified/kubepods.slice", 3));
}

TEST(Cgroup, WhatIsNoneIsToldInOneLineWithWhatToGive) {
  for (const char* path : {"/nonexistent/cgroup", "/proc/self/status", "/tmp"}) {
    auto cgroup = Cgroup::open(path);
    ASSERT_FALSE(cgroup.has_value()) << path;
    EXPECT_NE(cgroup.error().message.find("give a directory of the cgroup file system"),
              std::string::npos)
        << cgroup.error().message;
    EXPECT_EQ(cgroup.error().message.find('\n'), std::string::npos);
  }
  EXPECT_FALSE(Cgroup::in("/elsewhere", kHybrid, 0).has_value());
  EXPECT_FALSE(Cgroup::in("/sys/fs/cgroup/memory", "broken line\n", 0).has_value());
}

TEST(Cgroup, NobodyIsInItByABrokenTextOrAfterHisEnd) {
  auto cgroup = Cgroup::in("/sys/fs/cgroup/memory/a", kHybrid, 0);
  ASSERT_TRUE(cgroup.has_value());
  for (const char* text : {"", "9", "9:memory", "::", "9::/a\n", "x:memory:a"})
    EXPECT_FALSE(cgroup->contains_line_of(text)) << text;
  EXPECT_FALSE(cgroup->contains_line_of(cgroup_text(0x7fffffff).value_or("")));
}

}  // namespace
}  // namespace gpuprof::target

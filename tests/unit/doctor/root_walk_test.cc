// SPDX-License-Identifier: Apache-2.0
#include "daemon/doctor/root_walk.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/unit/doctor/made_up_root.h"

namespace gpuprof::doctor {
namespace {

using testing::ElementsAre;
using Stop = RootWalk::Stop;

class RootWalkTest : public MadeUpRoot {
 protected:
  RootWalk go(const std::string& path, const FileUser& user = {}) const {
    return walk(open(), path, user);
  }
  static FileUser other() { return {kNobody, kNobody, {}, false}; }
};

TEST_F(RootWalkTest, FilesBehindLinksInsideTheRoot) {
  write("/opt/real/shim.so", "x");
  link("/opt/real", "/opt/link");        // absolute: from the root, not from ours
  link("../link/shim.so", "/opt/a/up");  // and upwards
  for (const char* path : {"/opt/real/shim.so", "/opt/link/shim.so", "/opt/a/up", "//opt/./a/up",
                           "/opt/a/../../../opt/real/shim.so"}) {
    const RootWalk end = go(path);
    EXPECT_EQ(end.stop, Stop::kNowhere) << path;
    EXPECT_TRUE(end.file.valid()) << path;
  }
}

TEST_F(RootWalkTest, WhereItEnds) {
  write("/opt/file", "x");
  link("/nowhere", "/opt/dangling");
  link("circle", "/opt/circle");
  EXPECT_EQ(go("/opt/none").where, "/opt/none");
  EXPECT_EQ(go("/gone/far/away").where, "/gone") << "the first that is missing";
  EXPECT_EQ(go("/gone/far/away").stop, Stop::kMissing);
  const RootWalk dangling = go("/opt/dangling");
  EXPECT_EQ(dangling.stop, Stop::kDangling);
  EXPECT_EQ(dangling.where, "/opt/dangling");
  EXPECT_EQ(dangling.target, "/nowhere");
  EXPECT_EQ(go("/opt/file/below").stop, Stop::kNotFolder);
  EXPECT_EQ(go("/opt/file/below").where, "/opt/file");
  EXPECT_EQ(go("/opt/circle").stop, Stop::kLoop);
}

TEST_F(RootWalkTest, ModesOfEachDirectoryForThatUser) {
  write("/opt/closed/shim.so", "x");
  ::chmod((root_ + "/opt/closed").c_str(), 0750);
  const RootWalk end = go("/opt/closed/shim.so", other());
  EXPECT_EQ(end.stop, Stop::kNoSearch);
  EXPECT_EQ(end.where, "/opt/closed");
  FileUser user = other();
  user.overrides = true;
  EXPECT_EQ(go("/opt/closed/shim.so", user).stop, Stop::kNowhere);
  user = other();
  user.groups = {::getegid()};
  EXPECT_EQ(go("/opt/closed/shim.so", user).stop, Stop::kNowhere) << "its group may";
  ::chmod((root_ + "/opt/closed").c_str(), 0701);
  EXPECT_EQ(go("/opt/closed/shim.so", user).stop, Stop::kNoSearch)
      << "the group's part counts for it, though others may";
}

TEST_F(RootWalkTest, ReadableByMode) {
  write("/shim.so", "x");
  ::chmod((root_ + "/shim.so").c_str(), 0640);
  const RootWalk end = go("/shim.so");
  EXPECT_FALSE(may_read(end.file, other()));
  EXPECT_TRUE(may_read(end.file, {::geteuid(), kNobody, {}, false}));
  EXPECT_TRUE(may_read(end.file, {kNobody, ::getegid(), {}, false}));
}

TEST(FileUser, OfTheStatusFile) {
  const FileUser user = parse_file_user(
      "Name:\tx\nUmask:\t0022\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nFDSize:\t64\n"
      "Groups:\t20 30 \nNStgid:\t9\nCapEff:\t0000000000000004\n");
  EXPECT_EQ(user.uid, 4u);
  EXPECT_EQ(user.gid, 8u);
  EXPECT_THAT(user.groups, ElementsAre(20u, 30u));
  EXPECT_TRUE(user.overrides) << "CAP_DAC_READ_SEARCH";
  const FileUser none = parse_file_user("Groups:\nCapEff:\t00000000a8042001\n");
  EXPECT_TRUE(none.groups.empty());
  EXPECT_FALSE(none.overrides);
}

}  // namespace
}  // namespace gpuprof::doctor

// SPDX-License-Identifier: Apache-2.0
// Users of a directory service, told by stand-ins for getent and id in a folder of their own.
#include "daemon/cli/users.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "daemon/cli/invoker.h"

namespace gpuprof::cli {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;

// Only a hang takes so long.
constexpr milliseconds kPatience{60'000};
// In neither /etc/passwd nor /etc/group of any test's machine.
constexpr uid_t kUid = 1'234'567'890;
constexpr const char* kLine = "directory.user:*:1234567890:1234567891:A User:/net/home/du:/bin/sh";

class UsersTest : public testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/gpuprof-users-XXXXXX";
    folder_ = ::mkdtemp(pattern);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void program(const std::string& name, const std::string& body) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
    ASSERT_EQ(::chmod(path.c_str(), 0755), 0);
  }
  void getent_says(const std::string& line) { program("getent", "echo '" + line + "'"); }

  [[nodiscard]] Users users(milliseconds patience = kPatience) const {
    return Users({"/nowhere", folder_}, patience);
  }

  std::string folder_;
};

TEST_F(UsersTest, WhomTheFilesNameIsNotAskedFor) {
  program("getent", "touch " + folder_ + "/asked");
  const auto root = users().find("root");
  ASSERT_TRUE(root.has_value()) << root.error().message;
  EXPECT_EQ(root->uid, 0u);
  EXPECT_EQ(users().find(uid_t{0})->name, "root");
  EXPECT_EQ(users().groups_of(*root, 7)->front(), 7u);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/asked"));
}

TEST_F(UsersTest, GetentNamesTheOthersAndIdTheirGroups) {
  program("getent",
          std::string("case \"$*\" in 'passwd directory.user'|'passwd 1234567890') echo '") +
              kLine + "';; *) exit 2;; esac");
  program("id", "[ \"$*\" = '-G directory.user' ] && echo 1234567891 27 1234567891 500000");
  for (const auto& user : {users().find("directory.user"), users().find(kUid)}) {
    ASSERT_TRUE(user.has_value()) << user.error().message;
    EXPECT_EQ(user->name, "directory.user");
    EXPECT_EQ(user->uid, kUid);
    EXPECT_EQ(user->gid, 1234567891u);
    EXPECT_EQ(user->home, "/net/home/du");
    EXPECT_THAT(*users().groups_of(*user, user->gid), ElementsAre(1234567891u, 27u, 500000u));
    EXPECT_THAT(*users().groups_of(*user, 27), ElementsAre(27u, 1234567891u, 1234567891u, 500000u));
  }
  const auto nobody = users().find("no.such.user");
  EXPECT_EQ(nobody.error().code, Code::kNotFound);
  EXPECT_EQ(nobody.error().message, folder_ + "/getent passwd no.such.user ended with 2");
}

TEST_F(UsersTest, AnswersAreNotTakenOnTrust) {
  for (const char* line :
       {"", "directory.user", "directory.user:*:1234567890:1:A:/h", "u:*:1234567890:1:A:/h:/s:more",
        "u:*:x:1:A:/h:/s", "u:*:1234567890::A:/h:/s", "u:*:4294967295:1:A:/h:/s",
        "-u:*:1234567890:1:A:/h:/s", ":*:1234567890:1:A:/h:/s", "a b:*:1234567890:1:A:/h:/s"}) {
    getent_says(line);
    EXPECT_EQ(users().find(kUid).error().code, Code::kUnavailable) << line;
  }
  program("getent", std::string("echo '") + kLine + "'; echo '" + kLine + "'");
  EXPECT_FALSE(users().find(kUid).has_value()) << "two lines";
  getent_says("other:*:1:1:A:/h:/s");
  EXPECT_THAT(users().find(kUid).error().message, HasSubstr("another user, other"));
  getent_says("u:*:1234567890:1:A:relative:/s");
  EXPECT_EQ(users().find(kUid)->home, "/");
  User user{"u", kUid, 1, "/", true};
  program("id", "echo 1 two 3");
  EXPECT_THAT(users().groups_of(user, 1).error().message, HasSubstr("answered no numbers"));
}

TEST_F(UsersTest, ANumberIsNoName) {
  getent_says(kLine);
  const auto found = users().find("1234567890");
  EXPECT_EQ(found.error().code, Code::kNotFound);
  EXPECT_THAT(found.error().message, HasSubstr("directory.user"));
  EXPECT_EQ(users().find("Directory.User")->name, "directory.user");
  program("getent", "touch " + folder_ + "/asked; exit 2");
  for (const char* name : {"", "-G", "a b", "a:b", "a/b", "a\nb"}) {
    EXPECT_EQ(users().find(name).error().code, Code::kNotFound) << name;
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/asked"));
}

TEST_F(UsersTest, TimeAndOutputAreLimited) {
  program("getent", "exec sleep 100");
  EXPECT_THAT(users(milliseconds(100)).find(kUid).error().message, HasSubstr("gave no answer in"));
  program("getent", "exec yes " + std::string(kLine));
  EXPECT_THAT(users().find(kUid).error().message, HasSubstr("printed more than it should"));
  program("getent", "kill -9 $$");
  EXPECT_THAT(users().find(kUid).error().message, HasSubstr("was ended by a signal"));
  std::filesystem::remove(folder_ + "/getent");
  EXPECT_EQ(users().find(kUid).error().message, "there is no getent");
}

TEST_F(UsersTest, AreAskedInACleanEnvironment) {
  ::setenv("GPUPROF_USERS_TEST", "1", 1);
  program("getent",
          "[ -z \"$GPUPROF_USERS_TEST\" ] && [ \"$LC_ALL\" = C ] && ! read line && echo '" +
              std::string(kLine) + "'");
  EXPECT_TRUE(users().find(kUid).has_value());
  ::unsetenv("GPUPROF_USERS_TEST");
}

TEST_F(UsersTest, UserOptionNamesOne) {
  getent_says(kLine);
  program("id", "echo 1234567891");
  const auto found = Invoker::resolve("directory.user", users());
  if (::geteuid() != 0) {
    EXPECT_EQ(found.error().code, Code::kPermission);  // known, and not ours to become
  } else {
    ASSERT_TRUE(found.has_value()) << found.error().message;
    EXPECT_EQ(found->home, "/net/home/du");
    EXPECT_EQ(found->note, "");
  }
  program("getent", "exit 2");
  EXPECT_EQ(Invoker::resolve("directory.user", users()).error().message,
            "--user: no such user: directory.user (" + folder_ +
                "/getent passwd directory.user ended with 2)");
}

}  // namespace
}  // namespace gpuprof::cli

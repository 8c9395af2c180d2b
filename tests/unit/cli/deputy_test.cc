// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/deputy.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "daemon/cli/capabilities.h"
#include "daemon/cli/output_file.h"

namespace gpuprof::cli {
namespace {

namespace fs = std::filesystem;

class DeputyTest : public testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/gpuprof-deputy-XXXXXX";
    directory_ = ::mkdtemp(pattern);
    owner_.uid = ::geteuid();
    owner_.gid = ::getegid();
  }
  void TearDown() override { fs::remove_all(directory_); }
  OutputFile open(const std::string& name, OutputFile::Existing existing) {
    auto file = OutputFile::open(directory_ + "/" + name, existing, owner_);
    EXPECT_TRUE(file.has_value());
    return std::move(*file);
  }
  std::string directory_;
  Invoker owner_;
};

TEST_F(DeputyTest, GivesFilesTheirNames) {
  std::ofstream(directory_ + "/b.pb.gz") << "older";
  OutputFile first = open("a.json", OutputFile::Existing::kReplace);
  OutputFile second = open("b.pb.gz", OutputFile::Existing::kKeep);
  OutputFile* const files[] = {&first, &second};
  auto deputy = Deputy::start(files, -1);
  ASSERT_TRUE(deputy.has_value()) << deputy.error().message;
  first.delegate(*deputy, 0);
  second.delegate(*deputy, 1);
  auto name = second.commit("newer");
  ASSERT_TRUE(name.has_value()) << name.error().message;
  EXPECT_EQ(*name, directory_ + "/b-2.pb.gz");
  EXPECT_EQ(fs::file_size(*name), 5u);
  ASSERT_TRUE(first.commit("{}").has_value());
  EXPECT_TRUE(fs::exists(directory_ + "/a.json"));
}

TEST_F(DeputyTest, TellsWhatIsWrong) {
  OutputFile file = open("a.json", OutputFile::Existing::kReplace);
  OutputFile* const files[] = {&file};
  auto deputy = Deputy::start(files, -1);
  ASSERT_TRUE(deputy.has_value());
  file.delegate(*deputy, 0);
  fs::remove_all(directory_);
  auto name = file.commit("{}");
  ASSERT_FALSE(name.has_value());
  EXPECT_EQ(name.error().sys_errno, ENOENT);
  EXPECT_NE(name.error().message.find("no such directory"), std::string::npos);
  EXPECT_FALSE(deputy->signal(SIGTERM).has_value()) << "no command";
  EXPECT_FALSE(deputy->publish(7).has_value()) << "no such file";
}

TEST_F(DeputyTest, KilledIsAnError) {
  OutputFile file = open("a.json", OutputFile::Existing::kReplace);
  OutputFile* const files[] = {&file};
  auto deputy = Deputy::start(files, -1);
  ASSERT_TRUE(deputy.has_value());
  file.delegate(*deputy, 0);
  ::kill(deputy->pid(), SIGKILL);
  auto name = file.commit("{}");
  ASSERT_FALSE(name.has_value());
  EXPECT_NE(name.error().message.find("was killed"), std::string::npos) << name.error().message;
}

TEST_F(DeputyTest, SignalsTheCommand) {
  const pid_t command = ::fork();
  if (command == 0) {
    for (;;) ::pause();
  }
  auto deputy = Deputy::start({}, command);
  ASSERT_TRUE(deputy.has_value());
  EXPECT_TRUE(deputy->signal(SIGKILL).has_value());
  int status = 0;
  ASSERT_EQ(::waitpid(command, &status, 0), command);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_FALSE(deputy->signal(SIGKILL).has_value()) << "gone, whoever has its number now";
}

TEST(Capabilities, NothingComesBack) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs capabilities to drop";
  const pid_t child = ::fork();
  if (child == 0) {
    constexpr cap_value_t kKept[] = {CAP_SYS_PTRACE};
    if (!keep_capabilities(kKept)) ::_exit(1);
    if (::prctl(PR_CAPBSET_READ, CAP_SYS_ADMIN, 0, 0, 0) != 0) ::_exit(2);
    // An exec by uid 0 would otherwise gain them all again.
    ::execl("/bin/sh", "sh", "-c", "grep -q 'CapEff:.*0000000000000000' /proc/self/status",
            nullptr);
    ::_exit(3);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace gpuprof::cli

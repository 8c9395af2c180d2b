// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/command.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace gpuprof::cli {
namespace {

class CommandTest : public testing::Test {
 protected:
  void SetUp() override {
    ::sigemptyset(&mask_);
    char pattern[] = "/tmp/gpuprof-command-XXXXXX";
    directory_ = ::mkdtemp(pattern);
    std::filesystem::permissions(directory_, std::filesystem::perms::all);
    invoker_.uid = ::geteuid();
  }
  void TearDown() override {
    std::filesystem::remove_all(directory_);
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a zombie or a child was left";
  }
  // The status of `sh -c script`, run as invoker_.
  int run(const std::string& script) {
    auto command = Command::fork({"/bin/sh", "-c", script},
                                 Environment({"PATH=/usr/bin:/bin", "OUT=" + directory_ + "/out"}),
                                 invoker_, mask_);
    EXPECT_TRUE(command.has_value());
    auto started = command->start();
    EXPECT_TRUE(started.has_value()) << started.error().message;
    return command->wait_exit();
  }
  [[nodiscard]] std::string output() const {
    std::ostringstream out;
    out << std::ifstream(directory_ + "/out").rdbuf();
    return out.str();
  }
  sigset_t mask_ = {};
  std::string directory_;
  Invoker invoker_;
};

TEST_F(CommandTest, KeepsTheStatus) {
  EXPECT_EQ(run("exit 0"), 0);
  EXPECT_EQ(run("exit 42"), 42);
  EXPECT_EQ(run("kill -TERM $$"), 128 + SIGTERM);
  EXPECT_EQ(run("kill -KILL $$"), 128 + SIGKILL);
}

TEST_F(CommandTest, WaitsAtTheGate) {
  auto command = Command::fork({"/bin/sh", "-c", "exit 7"}, Environment({}), invoker_, mask_);
  ASSERT_TRUE(command.has_value());
  ::usleep(50'000);
  EXPECT_FALSE(command->poll_exit().has_value()) << "it must not run before start()";
  ASSERT_TRUE(command->start().has_value());
  EXPECT_EQ(command->wait_exit(), 7);
  EXPECT_EQ(command->poll_exit(), 7) << "again";
}

TEST_F(CommandTest, AbandonedCommandNeverRuns) {
  auto command = Command::fork({"/bin/sh", "-c", "touch " + directory_ + "/ran"}, Environment({}),
                               invoker_, mask_);
  command->abandon();
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/ran"));
}

TEST_F(CommandTest, SaysWhyItCannotStart) {
  auto command = Command::fork({"/no/such/program"}, Environment({}), invoker_, mask_);
  auto started = command->start();
  ASSERT_FALSE(started.has_value());
  EXPECT_EQ(started.error().message, "cannot run /no/such/program: No such file or directory");
  auto directory = Command::fork({"/tmp"}, Environment({}), invoker_, mask_);
  EXPECT_EQ(directory->start().error().sys_errno, EACCES);
}

TEST_F(CommandTest, InheritsNoDescriptorOfOurs) {
  ASSERT_EQ(run("ls /proc/self/fd | wc -l > $OUT"), 0);
  const std::string inherited = output();
  const UniqueFd ours(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(run("ls /proc/self/fd | wc -l > $OUT"), 0);
  EXPECT_EQ(output(), inherited);
  // 0, 1, 2 and the descriptor of /proc/self/fd itself, and what the test runner handed down.
  size_t open_now = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++open_now;
  EXPECT_LE(std::stoul(inherited), open_now);
}

TEST_F(CommandTest, GetsTheOriginalSignalMaskAndGroup) {
  sigset_t blocked;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &blocked, nullptr);
  EXPECT_EQ(run("kill -TERM $$; exit 3"), 128 + SIGTERM);
  EXPECT_EQ(run("ps -o pgid= -p $$ | tr -d ' ' > $OUT"), 0);
  EXPECT_EQ(output(), std::to_string(::getpgrp()) + "\n");
  ::sigprocmask(SIG_UNBLOCK, &blocked, nullptr);
}

TEST_F(CommandTest, PassesSignalsOn) {
  auto command = Command::fork(
      {"/bin/sh", "-c", "trap 'exit 9' USR1; echo > $OUT; while :; do sleep 0.01; done"},
      Environment({"PATH=/usr/bin:/bin", "OUT=" + directory_ + "/out"}), invoker_, mask_);
  ASSERT_TRUE(command->start().has_value());
  while (!std::filesystem::exists(directory_ + "/out")) ::usleep(1000);
  command->send(SIGUSR1);
  EXPECT_EQ(command->wait_exit(), 9);
}

TEST_F(CommandTest, BecomesTheInvokerWithoutAnyCapability) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become somebody else";
  invoker_.uid = 65534;
  invoker_.gid = 65533;
  invoker_.groups = {65533, 4242};
  invoker_.switches = true;
  ASSERT_EQ(
      run("{ id -u; id -g; id -G; grep -E 'Cap(Inh|Prm|Eff|Amb)' /proc/self/status; } > $OUT"), 0);
  const std::string text = output();
  EXPECT_EQ(text.substr(0, text.find("Cap")), "65534\n65533\n65533 4242\n");
  for (const char* set : {"CapInh", "CapPrm", "CapEff", "CapAmb"})
    EXPECT_NE(text.find(std::string(set) + ":\t0000000000000000"), std::string::npos) << text;
}

}  // namespace
}  // namespace gpuprof::cli

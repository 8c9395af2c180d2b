// SPDX-License-Identifier: Apache-2.0
#include "daemon/target/identity.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "daemon/target/process.h"

namespace gpuprof::target {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

TEST(Rank, IsAPlainNumber) {
  EXPECT_EQ(rank_of("0"), "0");
  EXPECT_EQ(rank_of("17"), "17");
  EXPECT_EQ(rank_of("9999999"), "9999999");
  for (const char* other :
       {"", "10000000", "-1", "+1", "01", "00", " 1", "1 ", "1a", "0x1", "\xd9\xa1"})
    EXPECT_EQ(rank_of(other), "") << other;
}

TEST(IdentityLabels, AreThoseThatAreKnown) {
  Identity identity;
  EXPECT_EQ(identity.labels(), Pairs());
  identity.ns_pid = 7;
  identity.container = {"c0ffee", "uid"};
  identity.rank = "3";
  identity.local_rank = "1";
  EXPECT_EQ(identity.labels(), (Pairs{{"ns_pid", "7"},
                                      {"container_id", "c0ffee"},
                                      {"pod_uid", "uid"},
                                      {"rank", "3"},
                                      {"local_rank", "1"}}));
}

// A program of the given environment, until it is destroyed.
class Program {
 public:
  explicit Program(std::vector<std::string> environment) {
    std::vector<char*> envp;
    for (std::string& entry : environment) envp.push_back(entry.data());
    envp.push_back(nullptr);
    int ready[2];
    EXPECT_EQ(::pipe2(ready, O_CLOEXEC), 0);  // exec closes it
    pid_ = ::fork();
    if (pid_ == 0) {
      ::execle("/bin/sleep", "sleep", "1000", nullptr, envp.data());
      ::_exit(127);
    }
    ::close(ready[1]);
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 0);
    ::close(ready[0]);
  }
  ~Program() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  [[nodiscard]] ProcessId id() const {
    return process_id(static_cast<uint32_t>(pid_)).value_or(ProcessId());
  }

 private:
  pid_t pid_ = -1;
};

TEST(IdentityOf, ReadsTheRanks) {
  const Program program({"LOCAL_RANK=3", "WORLD_RANK=9", "RANK=11", "RANK=12"});
  const Identity got = identity_of(program.id());
  EXPECT_EQ(got.rank, "11") << "as getenv has it";
  EXPECT_EQ(got.local_rank, "3");
  EXPECT_EQ(got.ns_pid, 0u) << "the same number in both";
}

TEST(IdentityOf, LeavesOutWhatIsNoRank) {
  const Program program({"RANK=one", "LOCAL_RANK=" + std::string(100'000, '7')});
  const Identity got = identity_of(program.id());
  EXPECT_EQ(got.rank, "");
  EXPECT_EQ(got.local_rank, "");
}

TEST(IdentityOf, IsEmptyOfAnotherProcessOfThatNumber) {
  const Program program({"RANK=1"});
  ProcessId other = program.id();
  --other.start_ticks;
  EXPECT_EQ(identity_of(other).rank, "");
  EXPECT_EQ(identity_of({INT32_MAX, 1}).labels(), Pairs());
}

}  // namespace
}  // namespace gpuprof::target

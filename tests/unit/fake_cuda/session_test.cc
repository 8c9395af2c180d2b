// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_cuda/play/session.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "tests/unit/fake_cuda/program.h"

namespace fakecuda {
namespace {

class SessionFile {
 public:
  explicit SessionFile(const std::string& text)
      : path_("/tmp/fake_cuda_session." + std::to_string(getpid())) {
    std::ofstream(path_) << text;
  }
  ~SessionFile() { unlink(path_.c_str()); }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

Outcome play(const std::string& text, Environment environment = {}) {
  const SessionFile file(text);
  environment["CUDA_INJECTION64_PATH"] = "";
  return run({PLAY_PATH, file.path()}, environment);
}

TEST(Session, NestedLoopsAndCountsMultiply) {
  const Outcome o = play(R"(
kernel k duration=100
graph g k*3
thread t on=main
  loop 3
    path a/b
    loop 2
      launch k count=5
    end
    run-graph g
  end
  capture k count=7
)");
  EXPECT_EQ(o.status, 0) << o.errors;
  EXPECT_EQ(o.number("executions"), 3 * (2 * 5 + 3));
  EXPECT_EQ(o.number("gpu_ns"), 3900);
  EXPECT_EQ(o.number("captured_launches"), 3 + 7);
  EXPECT_NE(o.truth.find(
                "{\"stack\":[\"main\",\"path_a\",\"path_b\"],\"kind\":\"kernel\",\"kernel\":\"k\""),
            std::string::npos);
}

TEST(Session, NamesStandForValues) {
  const std::string text = "let n 2\nkernel k\nthread t\n launch k count=$n\n";
  EXPECT_EQ(play(text).number("executions"), 2);
  const SessionFile file(text);
  EXPECT_EQ(
      run({PLAY_PATH, file.path(), "n=5"}, {{"CUDA_INJECTION64_PATH", ""}}).number("executions"),
      5);
}

TEST(Session, RandomDurationsAreTheSameEachRun) {
  const char* text = "seed 7\nkernel k duration=100..900\nthread t\n launch k count=500\n";
  const Outcome first = play(text);
  EXPECT_EQ(first.status, 0);
  EXPECT_GT(first.number("gpu_ns"), 500 * 300);
  EXPECT_LT(first.number("gpu_ns"), 500 * 700);
  EXPECT_EQ(play(text).number("gpu_ns"), first.number("gpu_ns"));
}

TEST(Session, EndsTheProcessAsAsked) {
  EXPECT_EQ(play("thread t\n exit 5\n").status, 5);
  EXPECT_EQ(play("thread t\n _exit 6\n").status, 6);
  EXPECT_EQ(play("thread t\n kill\n").status, 128 + 9);
  EXPECT_EQ(
      play("kernel k\nthread t\n cancel\n sleep 10ms\n launch k\nthread u on=main\n launch k\n")
          .number("launches"),
      1);
}

TEST(Session, KernelsFollowTheModuleThatTheThreadLoaded) {
  const Outcome o = play(R"(
module m size=1k loaded=later
kernel k module=m duration=100
thread t on=main
  loop 3
    load m
    launch k count=2
    unload m
  end
)");
  EXPECT_EQ(o.status, 0) << o.errors;
  EXPECT_EQ(o.number("executions"), 6);
  for (const char* module : {"\"module\":2", "\"module\":3", "\"module\":4"})
    EXPECT_NE(o.truth.find(module), std::string::npos) << o.truth;
  const Outcome early = play("module m loaded=later\nkernel k module=m\nthread t\n launch k\n");
  EXPECT_EQ(early.status, 2);
  EXPECT_NE(early.errors.find("session line 4: the module of k is not loaded"), std::string::npos);
}

TEST(Session, SigtermEndsItAsIfItWereOver) {
  const Outcome o = play(R"(
kernel k duration=100
thread forever
  loop 1000000000
    launch k
    sleep 1ms
  end
thread t on=main
  launch k count=3
  terminate
  launch k count=1000
)");
  EXPECT_EQ(o.status, 0) << o.errors;
  EXPECT_GE(o.number("executions"), 3);
  EXPECT_LT(o.number("executions"), 1000);
}

TEST(Session, ModulesAreFilesBesideTheSession) {
  const Outcome o = play("module m file=no-such.cubin\nthread t\n");
  EXPECT_EQ(o.status, 2);
  EXPECT_NE(o.errors.find("cannot read module /tmp/no-such.cubin"), std::string::npos) << o.errors;
  const std::string cubin = std::string("module m file=") + CUBINS + "/inline_chain.sm_90.cubin\n" +
                            "kernel k module=m function=chain\npcs k ";
  EXPECT_EQ(play(cubin + "0x190:wait*3/1 0x2e70:selected\nthread t\n launch k\n").status, 0);
  EXPECT_EQ(play(cubin + "0x2e80:wait\nthread t\n launch k\n").status, 2);  // past its end
  EXPECT_EQ(play(cubin + "!0x2e80:wait\nthread t\n launch k\n").status, 0);
}

TEST(Session, MistakesNameTheLine) {
  for (const auto& [text, message] : std::vector<std::pair<std::string, std::string>>{
           {"thread t\n launch nobody\n", ":2: no kernel nobody"},
           {"thread t\n\n loop 2\n", ":3: loop without end"},
           {"kernel k duration=9us..5us\n", ":1: the range of durations is empty"},
           {"thread t\n sleep 5parsec\n", ":2: unknown unit: 5parsec"},
           {"kernel k\n", ": has no thread"},
           {"thread t\n sleep $long\n", ":2: nothing is called $long"},
           {"thread t\n path a/z\n", ":2: a path is a/b/c, a to p"}}) {
    const Outcome o = play(text);
    EXPECT_EQ(o.status, 2) << text;
    EXPECT_NE(o.errors.find(message), std::string::npos) << o.errors;
  }
}

TEST(Session, UnknownSettingIsAMistake) { EXPECT_EQ(play("set nonsense 1\nthread t\n").status, 2); }

}  // namespace
}  // namespace fakecuda

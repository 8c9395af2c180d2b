// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/debug_fetcher.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

namespace gpuprof::cli {
namespace {

namespace fs = std::filesystem;
using std::chrono::steady_clock;

// Ends in what it is to do: "f": prints a file, "d": a folder, "a": nothing, "0": hangs.
constexpr const char* kScript = R"(#!/bin/sh
echo "$1 $2 $HOME" >> "$TEST_DIR/asked"
case $2 in
  *f) echo "$TEST_DIR/files/$2" ;;
  *d) echo "$TEST_DIR/files" ;;
  *a) exit 1 ;;
  *0) echo $$ >> "$TEST_DIR/hanging"; exec sleep 600 ;;
esac
)";

class DebugFetcherTest : public testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/gpuprof-fetcher-XXXXXX";
    directory_ = ::mkdtemp(pattern);
    fs::create_directories(directory_ / "files");
    std::ofstream(program()) << kScript;
    ::chmod(program().c_str(), 0755);
    owner_.uid = ::geteuid();
    owner_.gid = ::getegid();
  }
  void TearDown() override { fs::remove_all(directory_); }
  [[nodiscard]] fs::path program() const { return directory_ / DebugFetcher::kProgram; }
  std::unique_ptr<DebugFetcher> start() {
    auto out = DebugFetcher::start(
        owner_, Environment({"DEBUGINFOD_URLS=http://localhost:1", "HOME=/of/the/user",
                             "PATH=" + directory_.string() + ":/usr/bin:/bin",
                             "TEST_DIR=" + directory_.string()}));
    EXPECT_TRUE(out.has_value());
    return std::move(*out);
  }
  void put_file(const std::string& build_id) const {
    std::ofstream(directory_ / "files" / build_id) << "contents of " << build_id;
  }
  // Sooner or later: only a hang takes so long.
  static void wait_for(const std::function<bool()>& condition) {
    const auto deadline = steady_clock::now() + std::chrono::seconds(60);
    while (!condition()) {
      ASSERT_LT(steady_clock::now(), deadline);
      ::usleep(5'000);
    }
  }
  static std::string contents(const UniqueFd& file) {
    char buffer[100];
    const ssize_t n = file.valid() ? ::read(file.get(), buffer, sizeof buffer) : 0;
    return std::string(buffer, static_cast<size_t>(std::max<ssize_t>(n, 0)));
  }

  fs::path directory_;
  Invoker owner_;
};

TEST_F(DebugFetcherTest, WithoutUrlsThereIsNone) {
  auto out = DebugFetcher::start(owner_, Environment({"PATH=" + directory_.string()}));
  ASSERT_TRUE(out.has_value());
  EXPECT_EQ(*out, nullptr);
}

TEST_F(DebugFetcherTest, WithoutTheProgramItSaysSo) {
  auto out = DebugFetcher::start(owner_, Environment({"DEBUGINFOD_URLS=x", "PATH=/nonexistent:."}));
  ASSERT_FALSE(out.has_value());
  EXPECT_NE(out.error().message.find("no debuginfod-find on the PATH"), std::string::npos);
}

TEST_F(DebugFetcherTest, HandsOverWhatCameAndCountsWhatDidNot) {
  const auto fetcher = start();
  std::vector<std::string> found;
  for (int i = 10; i < 30; ++i) found.push_back("abcdef" + std::to_string(i) + "0f");
  for (const std::string& id : found) {
    put_file(id);
    fetcher->want(id);
    fetcher->want(id);  // once is enough
  }
  fetcher->want("abcdef0a");
  fetcher->want("abcdef0d");
  fetcher->want("not a build id; rm -rf");
  fetcher->want("ABCDEF");
  fetcher->want("");
  wait_for([&] { return fetcher->counts().found + fetcher->counts().missing == 22; });
  EXPECT_EQ(fetcher->counts().wanted, 22u);
  EXPECT_EQ(fetcher->counts().found, 20u);
  for (const std::string& id : found) {
    EXPECT_EQ(contents(fetcher->take(id)), "contents of " + id);
    EXPECT_FALSE(fetcher->take(id).valid()) << "only once";
  }
  EXPECT_FALSE(fetcher->take("abcdef0d").valid()) << "a folder is no file";
  std::ifstream asked(directory_ / "asked");
  std::string line;
  ASSERT_TRUE(std::getline(asked, line));
  EXPECT_TRUE(line.starts_with("debuginfo abcdef")) << line;
  EXPECT_TRUE(line.ends_with(" /of/the/user")) << line;
}

// What hangs holds a place of kMaxAtOnce and nobody up, and goes with the fetcher.
TEST_F(DebugFetcherTest, AHangingServerCostsNothing) {
  auto fetcher = start();
  const auto begin = steady_clock::now();
  for (int i = 10; i < 60; ++i) fetcher->want("abcdef" + std::to_string(i) + "00");
  const auto hanging = [&] {
    std::vector<pid_t> out;
    std::ifstream in(directory_ / "hanging");
    for (pid_t pid = 0; in >> pid;) out.push_back(pid);
    return out;
  };
  wait_for([&] { return hanging().size() == DebugFetcher::kMaxAtOnce; });
  EXPECT_FALSE(fetcher->take("abcdef1000").valid());
  EXPECT_EQ(fetcher->counts().found + fetcher->counts().missing, 0u);
  const pid_t helper = fetcher->pid();
  fetcher.reset();
  EXPECT_LT(steady_clock::now() - begin, std::chrono::seconds(120));  // and not 600
  EXPECT_NE(::kill(helper, 0), 0);
  EXPECT_EQ(hanging().size(), DebugFetcher::kMaxAtOnce);
  for (const pid_t pid : hanging()) {
    wait_for([&] {  // its parent is gone: init reaps it
      std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
      std::string text;
      return !std::getline(stat, text) || text.find(") Z ") != std::string::npos;
    });
  }
}

TEST_F(DebugFetcherTest, AHelperThatIsKilledIsMissedByNobody) {
  const auto fetcher = start();
  ::kill(fetcher->pid(), SIGKILL);
  wait_for([&] {
    std::ifstream stat("/proc/" + std::to_string(fetcher->pid()) + "/stat");
    std::string text;
    return std::getline(stat, text) && text.find(") Z ") != std::string::npos;
  });
  fetcher->want("abcdef0f");
  EXPECT_FALSE(fetcher->take("abcdef0f").valid());
  EXPECT_EQ(fetcher->counts().found, 0u);
}

}  // namespace
}  // namespace gpuprof::cli

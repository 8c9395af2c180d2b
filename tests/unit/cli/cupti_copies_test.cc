// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/cupti_copies.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "daemon/target/process.h"

namespace gpuprof::cli {
namespace {

namespace fs = std::filesystem;

// Made by CMake: one soname; the newer one has cuptiNewer and cuptiNewest beside cuptiSubscribe.
const std::string kOlder = CUPTI_OLDER, kNewer = CUPTI_NEWER, kSoname = "libcupti.so.12";

class CuptiCopiesTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/gpuprof-copies-XXXXXX";
    folder_ = mkdtemp(name);
    used_ = place(kOlder, "used");
  }
  void TearDown() override {
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      ::waitpid(child_, nullptr, 0);
    }
    fs::remove_all(folder_);
  }
  std::string place(const std::string& from, const std::string& folder) {
    fs::create_directories(folder_ + "/" + folder);
    const std::string to = folder_ + "/" + folder + "/" + kSoname;
    fs::copy_file(from, to);
    return to;
  }
  // A process with this environment, which maps `preload`.
  uint32_t start(std::vector<std::string> environment, const std::string& preload = "") {
    if (!preload.empty()) environment.push_back("LD_PRELOAD=" + preload);
    std::vector<char*> words;
    for (std::string& word : environment) words.push_back(word.data());
    words.push_back(nullptr);
    std::string program = "/bin/sleep", seconds = "600";
    char* argv[] = {program.data(), seconds.data(), nullptr};
    EXPECT_EQ(posix_spawn(&child_, program.c_str(), nullptr, nullptr, argv, words.data()), 0);
    for (int i = 0; i < 3000 && !sleeps(); ++i) usleep(10'000);
    EXPECT_TRUE(sleeps()) << "it has not mapped everything";
    return static_cast<uint32_t>(child_);
  }
  // Its first sleep is its own: what the loader waits for is no such state.
  bool sleeps() const {
    const auto stat = target::process_stat(static_cast<uint32_t>(child_));
    return stat && stat->state == 'S';
  }
  target::ShimStatus status(gpuprof_cupti_origin origin = GPUPROF_CUPTI_LOADED) const {
    target::ShimStatus out;
    out.cupti_origin = origin;
    out.cupti_path = used_;
    return out;
  }

  std::string folder_, used_;
  pid_t child_ = -1;
};

TEST_F(CuptiCopiesTest, NewerOneInTheLibraryPath) {
  const std::string newer = place(kNewer, "app");
  place(kOlder, "same");
  const uint32_t pid =
      start({"LD_LIBRARY_PATH=relative::" + folder_ + "/same:/nowhere:" + folder_ + "/app"});
  const auto copies = find_cupti_copies(pid, status());
  ASSERT_TRUE(copies);
  EXPECT_EQ(copies->used, used_);
  EXPECT_EQ(copies->other, newer);
  EXPECT_FALSE(copies->mapped);
  EXPECT_EQ(copies->lacking, (std::vector<std::string>{"cuptiNewer", "cuptiNewest"}));
  const std::string text = explain_cupti_copies(pid, *copies);
  EXPECT_NE(text.find(newer + " has 2 functions that it lacks (cuptiNewer, ...)"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("GPU_PROFILED_CUPTI_PATH=" + newer), std::string::npos) << text;
  EXPECT_FALSE(find_cupti_copies(pid, status(GPUPROF_CUPTI_MAPPED))) << "the application's own";
  EXPECT_FALSE(find_cupti_copies(pid, status(GPUPROF_CUPTI_UNKNOWN)));
}

TEST_F(CuptiCopiesTest, OlderOnesAreInNobodysWay) {
  fs::remove(used_);
  used_ = place(kNewer, "used");
  place(kOlder, "app");
  EXPECT_FALSE(find_cupti_copies(
      start({"LD_LIBRARY_PATH=" + folder_ + "/app:" + folder_ + "/used"}), status()));
}

TEST_F(CuptiCopiesTest, CondaAndThePythonEnvironment) {
  const std::string wheel = place(kNewer, "v/site-packages/nvidia/cuda_cupti/lib");
  const std::string module = place(kOlder, "v/site-packages/numpy");
  fs::rename(module, folder_ + "/v/site-packages/numpy/umath.so");
  const auto by_site =
      find_cupti_copies(start({}, folder_ + "/v/site-packages/numpy/umath.so"), status());
  ASSERT_TRUE(by_site);
  EXPECT_EQ(by_site->other, wheel);
  ::kill(child_, SIGKILL);
  ::waitpid(child_, nullptr, 0);
  const std::string conda = place(kNewer, "conda/lib");
  const auto by_prefix = find_cupti_copies(start({"CONDA_PREFIX=" + folder_ + "/conda"}), status());
  ASSERT_TRUE(by_prefix);
  EXPECT_EQ(by_prefix->other, conda);
}

TEST_F(CuptiCopiesTest, SecondOneThatIsMapped) {
  const std::string other = place(kNewer, "app");
  const uint32_t pid = start({}, used_ + " " + other);
  const auto copies = find_cupti_copies(pid, status(GPUPROF_CUPTI_MAPPED));
  // The loader takes one file a soname from LD_PRELOAD too, unless it is given paths.
  ASSERT_TRUE(copies);
  EXPECT_TRUE(copies->mapped);
  EXPECT_EQ(copies->other, other);
  EXPECT_NE(explain_cupti_copies(pid, *copies).find("has two copies of CUPTI"), std::string::npos);
}

TEST_F(CuptiCopiesTest, WhatIsNoLibraryIsPassedOver) {
  fs::create_directories(folder_ + "/a/" + kSoname);
  fs::create_directories(folder_ + "/b");
  std::ofstream(folder_ + "/b/" + kSoname) << std::string(4096, 'x');
  fs::create_directories(folder_ + "/c");
  ASSERT_EQ(mkfifo((folder_ + "/c/" + kSoname).c_str(), 0600), 0);
  const std::string newer = place(kNewer, "d");
  std::string whole;
  {
    std::ifstream in(newer, std::ios::binary);
    whole.assign(std::istreambuf_iterator<char>(in), {});
  }
  fs::create_directories(folder_ + "/e");
  std::ofstream(folder_ + "/e/" + kSoname, std::ios::binary) << whole.substr(0, whole.size() / 2);
  std::string path = "LD_LIBRARY_PATH=";
  for (const char* name : {"a", "b", "c", "e", "d"}) path += folder_ + "/" + name + ":";
  const auto copies = find_cupti_copies(start({path}), status());
  ASSERT_TRUE(copies);
  EXPECT_EQ(copies->other, newer);
  target::ShimStatus gone = status();
  gone.cupti_path = "/nowhere/libcupti.so.12";
  EXPECT_FALSE(find_cupti_copies(static_cast<uint32_t>(child_), gone));
  EXPECT_FALSE(find_cupti_copies(0x7ffffff0, status())) << "no such process";
}

}  // namespace
}  // namespace gpuprof::cli

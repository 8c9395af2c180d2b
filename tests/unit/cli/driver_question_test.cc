// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/driver_question.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>

#include "daemon/asker/asker.h"

namespace gpuprof::cli {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

// Only a hang takes so long.
constexpr milliseconds kPatience{60'000};
constexpr uint32_t kNoInit = UINT32_MAX;

AskAs asking(const std::string& asked) {
  AskAs out{Environment({"PATH=/usr/bin:/bin", "ASKED=" + asked}), *Invoker::resolve(""), {}, {}};
  ::sigemptyset(&out.mask);
  return out;
}

Result<DriverAnswer> ask(const std::string& asked, uint32_t bound = kNoInit,
                         milliseconds patience = kPatience) {
  return ask_driver(ASKED_LIBCUDA, bound, asking(asked), patience);
}

TEST(AskDriver, VersionPathAndInit) {
  auto answer = ask("");
  ASSERT_TRUE(answer.has_value()) << answer.error().message;
  EXPECT_EQ(answer->version, 12090u);
  EXPECT_EQ(answer->path, ASKED_LIBCUDA);
  EXPECT_FALSE(answer->init.has_value());
  answer = ask("804", 12080);
  ASSERT_TRUE(answer.has_value()) << answer.error().message;
  EXPECT_EQ(answer->init, 804);
  EXPECT_FALSE(ask("804", 12090)->init.has_value()) << "not newer: not initialised";
}

TEST(AskDriver, ByNameWithTheCommandsPath) {
  AskAs as = asking("");
  EXPECT_EQ(ask_driver("libasked_cuda.so", kNoInit, as, kPatience).error().code, Code::kNotFound);
  as.environment.set("LD_LIBRARY_PATH",
                     std::filesystem::path(ASKED_LIBCUDA).parent_path().string());
  EXPECT_EQ(ask_driver("libasked_cuda.so", kNoInit, as, kPatience)->version, 12090u);
}

TEST(AskDriver, WithoutInjectionAndPreload) {
  AskAs as = asking("injected");
  as.environment.set("CUDA_INJECTION64_PATH", "/shim.so");
  as.environment.set("LD_PRELOAD", "libm.so.6");
  EXPECT_EQ(ask_driver(ASKED_LIBCUDA, kNoInit, as, kPatience)->version, 13000u);
}

TEST(AskDriver, ALibraryThatDoesNotLoadInTheLoadersWords) {
  auto answer = ask_driver("/nonexistent/libcuda.so.1", kNoInit, asking(""), kPatience);
  ASSERT_FALSE(answer.has_value());
  EXPECT_EQ(answer.error().code, Code::kNotFound);
  EXPECT_THAT(answer.error().message, HasSubstr("/nonexistent/libcuda.so.1: cannot open shared"));
  answer = ask_driver(TEGRA_LIBCUDA, kNoInit, asking(""), kPatience);
  EXPECT_THAT(answer.error().message, HasSubstr("libnvrm_gpu.so: cannot open shared object file"));
  answer = ask_driver(LACKING_LIBCUDA, kNoInit, asking(""), kPatience);
  EXPECT_THAT(answer.error().message, HasSubstr("lacks cuDriverGetVersion"));
  EXPECT_FALSE(ask("error").has_value());
}

TEST(AskDriver, OneThatCrashesExitsOrAnswersNonsense) {
  EXPECT_THAT(ask("crash").error().message, HasSubstr("signal 6"));
  EXPECT_THAT(ask("exit").error().message, HasSubstr("without an answer"));
  EXPECT_FALSE(ask("nonsense").has_value());
}

TEST(AskDriver, OneThatHangsOrFloodsIsEnded) {
  for (const char* how : {"hang", "hang-in-init"}) {
    auto answer = ask(how, 0, milliseconds(1500));
    ASSERT_FALSE(answer.has_value()) << how;
    EXPECT_THAT(answer.error().message, HasSubstr("no answer in 1 s")) << how;
  }
  auto answer = ask("flood", 0);
  ASSERT_FALSE(answer.has_value());
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "each is reaped";
  // It may forge its version, and that is all.
  EXPECT_TRUE(ask("forge", 0).has_value());
}

TEST(AskDriver, WhatItStartedIsNotWaitedFor) {
  auto answer = ask("child", 0);
  ASSERT_TRUE(answer.has_value()) << answer.error().message;
  EXPECT_EQ(answer->init, 0);
}

TEST(AskDriver, AsTheCommandsUser) {
  if (::geteuid() != 0) {
    EXPECT_EQ(ask("uid")->version, 100'000 + ::geteuid());
    return;
  }
  AskAs as = asking("uid");
  as.invoker.uid = as.invoker.gid = 64001;
  as.invoker.switches = true;
  // The build tree may be in a folder of root's alone.
  std::string folder = testing::TempDir() + "asked-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  ASSERT_EQ(::chmod(folder.c_str(), 0755), 0);
  const std::string copy = folder + "/libcuda.so.1";
  std::filesystem::copy_file(ASKED_LIBCUDA, copy);
  auto answer = ask_driver(copy, kNoInit, as, kPatience);
  ASSERT_TRUE(answer.has_value()) << answer.error().message;
  EXPECT_EQ(answer->version, 164'001u);
  // What that user may not read is not read.
  ASSERT_EQ(::chmod(folder.c_str(), 0700), 0);
  answer = ask_driver(copy, kNoInit, as, kPatience);
  EXPECT_FALSE(answer.has_value());
  std::filesystem::remove_all(folder);
}

TEST(ParseAnswer, OnlyWhatCanBe) {
  EXPECT_EQ(parse_answer("loaded /l\nversion 13000\ninit 0\nend\n")->init, 0);
  EXPECT_EQ(parse_answer("loaded /l\x1b[2J\nversion 13000\nend\n")->path, "/l?[2J");
  for (const char* text : {"", "end\n", "version\nend\n", "version -1\nend\n", "version 999\nend\n",
                           "version 99999999999\nend\n", "version 13000x\nend\n"})
    EXPECT_FALSE(parse_answer(text).has_value()) << text;
  const auto failed = parse_answer(
      "failed a\x1b"
      "b\nversion 13000\nend\n");
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().message, "a?b");
  EXPECT_LE(parse_answer("failed " + std::string(5000, 'x')).error().message.size(), 300u);
}

// Started by the loader of the system it meets: an ELF executable with the oldest symbol versions.
TEST(Asker, NeedsNoNewerGlibc) {
  const auto bytes = asker::program();
  ASSERT_GT(bytes.size(), 1000u);
  EXPECT_LT(bytes.size(), 128u << 10);
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  EXPECT_EQ(text.substr(0, 4),
            "\x7f"
            "ELF");
#if defined(__x86_64__)
  const std::string oldest = "GLIBC_2.2.5";
#else
  const std::string oldest = "GLIBC_2.17";
#endif
  for (size_t at = text.find("GLIBC_"); at != std::string::npos; at = text.find("GLIBC_", at + 1))
    EXPECT_EQ(text.substr(at, oldest.size() + 1), oldest + '\0');
}

}  // namespace
}  // namespace gpuprof::cli

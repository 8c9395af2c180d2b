// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/cubin_files.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "daemon/cli/deputy.h"
#include "daemon/cli/output_file.h"

namespace gpuprof::cli {
namespace {

namespace fs = std::filesystem;

const std::string kName(64, 'a');

class CubinFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/gpuprof-cubins-XXXXXX";
    directory_ = ::mkdtemp(pattern);
    owner_.uid = ::geteuid();
    owner_.gid = ::getegid();
  }
  void TearDown() override { fs::remove_all(directory_); }
  static UniqueFd holding(const std::string& text) {
    UniqueFd fd(::memfd_create("bytes", MFD_CLOEXEC));
    EXPECT_EQ(::write(fd.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
    return fd;
  }
  [[nodiscard]] std::string content(const std::string& name) const {
    std::ifstream file(directory_ + "/" + name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string directory_;
  Invoker owner_;
};

TEST_F(CubinFilesTest, SavesOnceAndForTheOwnerOnly) {
  const auto files = CubinFiles::open(directory_, owner_);
  ASSERT_TRUE(files.has_value()) << files.error().message;
  const std::string text(3'000'000, 'x');
  auto saved = files->save(kName, holding(text).get());
  ASSERT_TRUE(saved.has_value()) << saved.error().message;
  EXPECT_TRUE(*saved);
  EXPECT_EQ(content(kName + ".cubin"), text);
  struct stat info = {};
  ASSERT_EQ(::stat((directory_ + "/" + kName + ".cubin").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  saved = files->save(kName, holding(text).get());
  ASSERT_TRUE(saved.has_value()) << saved.error().message;
  EXPECT_FALSE(*saved) << "it is there";
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_), {}), 1) << "and nothing else";
}

TEST_F(CubinFilesTest, ALinkOfThatNameIsNotFollowed) {
  const auto files = CubinFiles::open(directory_, owner_);
  ASSERT_TRUE(files.has_value());
  ASSERT_EQ(::symlink("victim", (directory_ + "/" + kName + ".cubin").c_str()), 0);
  EXPECT_FALSE(files->save(kName, holding("x").get()).has_value());
  EXPECT_FALSE(fs::exists(directory_ + "/victim"));
  std::ofstream(directory_ + "/victim") << "x";  // not even if it leads to the right bytes
  EXPECT_FALSE(files->save(kName, holding("x").get()).has_value());
}

TEST_F(CubinFilesTest, AFileOfThatNameIsTheCubinOnlyByItsContent) {
  const auto files = CubinFiles::open(directory_, owner_);
  ASSERT_TRUE(files.has_value());
  const std::string text(600'000, 'x');
  const std::string path = directory_ + "/" + kName + ".cubin";
  std::string changed = text;
  changed.back() = 'y';
  for (const std::string& other : {changed, text + "x", text.substr(1), std::string()}) {
    std::ofstream(path, std::ios::trunc) << other;
    const auto saved = files->save(kName, holding(text).get());
    ASSERT_FALSE(saved.has_value()) << other.size();
    EXPECT_NE(saved.error().message.find(path), std::string::npos) << saved.error().message;
    EXPECT_EQ(content(kName + ".cubin"), other) << "and it is left alone";
  }
  std::ofstream(path, std::ios::trunc) << text;
  auto saved = files->save(kName, holding(text).get());
  ASSERT_TRUE(saved.has_value()) << saved.error().message;
  EXPECT_FALSE(*saved);
  ASSERT_EQ(::unlink(path.c_str()), 0);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_FALSE(files->save(kName, holding(text).get()).has_value()) << "nor does it wait for one";
}

TEST(SavedCubins, OneLineHoweverManyFail) {
  SavedCubins saved;
  EXPECT_EQ(saved.line("/d"), "saved 0 cubins in /d");
  saved.add(true);
  saved.add(fail(Code::kIo, "first"));
  saved.add(fail(Code::kIo, "second"));
  saved.add(false);
  EXPECT_TRUE(saved.failed());
  EXPECT_EQ(saved.line("/d"),
            "saved 1 cubin in /d (1 more were there); 2 could not be saved: first");
  SavedCubins kept;
  kept.add(true);
  kept.add(true);
  kept.add_lost();
  EXPECT_FALSE(kept.failed());
  EXPECT_EQ(kept.line("/d"), "saved 2 cubins in /d; 1 could not be kept till the end");
}

TEST_F(CubinFilesTest, OnlyHashesAreNames) {
  const auto files = CubinFiles::open(directory_, owner_);
  ASSERT_TRUE(files.has_value());
  for (const std::string& bad :
       {std::string("../x"), std::string(63, 'a'), std::string(64, '/'), std::string(64, 'A')})
    EXPECT_FALSE(files->save(bad, holding("x").get()).has_value()) << bad;
}

TEST_F(CubinFilesTest, TheDirectoryIsMadeAndProblemsShowAtOnce) {
  const std::string fresh = directory_ + "/new";
  ASSERT_TRUE(CubinFiles::open(fresh, owner_).has_value());
  struct stat info = {};
  ASSERT_EQ(::stat(fresh.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700u);
  std::ofstream(directory_ + "/file") << "x";
  for (const std::string& bad : {directory_ + "/no/such", directory_ + "/file"}) {
    auto files = CubinFiles::open(bad, owner_);
    ASSERT_FALSE(files.has_value()) << bad;
    EXPECT_NE(files.error().message.find(bad), std::string::npos) << files.error().message;
  }
}

TEST_F(CubinFilesTest, TheDeputySavesForTheInvokingUser) {
  if (::geteuid() == 0) owner_.uid = owner_.gid = 4711;
  const auto files = CubinFiles::open(directory_ + "/d", owner_);
  ASSERT_TRUE(files.has_value()) << files.error().message;
  auto output = OutputFile::open(directory_ + "/p", OutputFile::Existing::kReplace, owner_);
  ASSERT_TRUE(output.has_value());
  OutputFile* const outputs[] = {&*output};
  auto deputy = Deputy::start(outputs, -1, &*files);
  ASSERT_TRUE(deputy.has_value()) << deputy.error().message;
  auto saved = deputy->save_cubin(kName, holding("bytes").get());
  ASSERT_TRUE(saved.has_value()) << saved.error().message;
  EXPECT_TRUE(*saved);
  EXPECT_EQ(content("d/" + kName + ".cubin"), "bytes");
  struct stat info = {};
  ASSERT_EQ(::stat((directory_ + "/d/" + kName + ".cubin").c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, owner_.uid);
  EXPECT_FALSE(deputy->save_cubin("../x", holding("x").get()).has_value());
  saved = deputy->save_cubin(kName, holding("bytes").get());
  ASSERT_TRUE(saved.has_value()) << saved.error().message;
  EXPECT_FALSE(*saved);
  EXPECT_FALSE(deputy->save_cubin(kName, holding("other").get()).has_value());
}

TEST_F(CubinFilesTest, ADeputyWithoutADirectorySavesNothing) {
  auto output = OutputFile::open(directory_ + "/p", OutputFile::Existing::kReplace, owner_);
  ASSERT_TRUE(output.has_value());
  OutputFile* const outputs[] = {&*output};
  auto deputy = Deputy::start(outputs, -1);
  ASSERT_TRUE(deputy.has_value());
  EXPECT_FALSE(deputy->save_cubin(kName, holding("x").get()).has_value());
}

}  // namespace
}  // namespace gpuprof::cli

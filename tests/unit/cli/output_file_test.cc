// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/output_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "daemon/cli/signals.h"

namespace gpuprof::cli {
namespace {

namespace fs = std::filesystem;

class OutputFileTest : public testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/gpuprof-output-XXXXXX";
    directory_ = ::mkdtemp(pattern);
    path_ = directory_ + "/out.pb.gz";
    owner_.uid = ::geteuid();
    owner_.gid = ::getegid();
  }
  void TearDown() override { fs::remove_all(directory_); }
  [[nodiscard]] size_t entries() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(directory_), fs::directory_iterator()));
  }
  static std::string content(const std::string& path) {
    std::ostringstream out;
    out << std::ifstream(path, std::ios::binary).rdbuf();
    return out.str();
  }
  std::string directory_, path_;
  Invoker owner_;
};

TEST_F(OutputFileTest, AppearsWholeAtCommit) {
  auto file = OutputFile::open(path_, OutputFile::Existing::kReplace, owner_);
  ASSERT_TRUE(file.has_value()) << file.error().message;
  EXPECT_FALSE(fs::exists(path_));
  auto written = file->commit("profile");
  ASSERT_TRUE(written.has_value()) << written.error().message;
  EXPECT_EQ(*written, path_);
  EXPECT_EQ(content(path_), "profile");
  struct stat info = {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  EXPECT_EQ(entries(), 1u);
}

TEST_F(OutputFileTest, TheLargestFileSizeIsAnErrorAndNotTheEnd) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit = {1000, 1000};
    const auto signals = Signals::create();
    auto file = OutputFile::open(path_, OutputFile::Existing::kReplace, owner_);
    if (!signals || !file || ::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(2);
    const auto written = file->commit(std::string(5000, 'x'));
    ::_exit(!written && written.error().message.find("file size limit") != std::string::npos ? 0
                                                                                             : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(OutputFileTest, LeavesNothingWithoutCommit) {
  { auto file = OutputFile::open(path_, OutputFile::Existing::kReplace, owner_); }
  EXPECT_EQ(entries(), 0u);
}

TEST_F(OutputFileTest, NamedFileIsReplaced) {
  std::ofstream(path_) << "old and longer content";
  auto file = OutputFile::open(path_, OutputFile::Existing::kReplace, owner_);
  ASSERT_TRUE(file->commit("new").has_value());
  EXPECT_EQ(content(path_), "new");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(OutputFileTest, DefaultNameNeverOverwrites) {
  for (const char* expected : {"/out.pb.gz", "/out-2.pb.gz", "/out-3.pb.gz"}) {
    auto file = OutputFile::open(path_, OutputFile::Existing::kKeep, owner_);
    auto written = file->commit(expected);
    ASSERT_TRUE(written.has_value()) << written.error().message;
    EXPECT_EQ(*written, directory_ + expected);
  }
  EXPECT_EQ(content(path_), "/out.pb.gz");
  EXPECT_EQ(entries(), 3u);
}

TEST_F(OutputFileTest, ASymbolicLinkIsReplacedNotFollowed) {
  const std::string other = directory_ + "/other";
  std::ofstream(other) << "precious";
  fs::create_symlink(other, path_);
  auto file = OutputFile::open(path_, OutputFile::Existing::kReplace, owner_);
  ASSERT_TRUE(file->commit("profile").has_value());
  EXPECT_EQ(content(other), "precious");
  EXPECT_FALSE(fs::is_symlink(path_));
}

TEST_F(OutputFileTest, UnwritablePlacesFailAtOnceInOneLine) {
  for (const std::string& path : {directory_ + "/no/such/out", directory_,
                                  std::string("/proc/out.pb.gz"), directory_ + "/"}) {
    auto file = OutputFile::open(path, OutputFile::Existing::kReplace, owner_);
    ASSERT_FALSE(file.has_value()) << path;
    EXPECT_EQ(file.error().code, Code::kIo);
    EXPECT_NE(file.error().message.find("cannot write " + path), std::string::npos)
        << file.error().message;
    EXPECT_EQ(file.error().message.find('\n'), std::string::npos);
  }
}

TEST_F(OutputFileTest, SpecialFilesAreWrittenInPlace) {
  auto null = OutputFile::open("/dev/null", OutputFile::Existing::kReplace, owner_);
  ASSERT_TRUE(null.has_value());
  EXPECT_TRUE(null->commit("profile").has_value());
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  auto json =
      OutputFile::open("/dev/full", OutputFile::Existing::kReplace, owner_, "--summary-json");
  ASSERT_TRUE(json.has_value());
  EXPECT_NE(json->commit("x").error().message.find("or write elsewhere with --summary-json"),
            std::string::npos);
  auto full = OutputFile::open("/dev/full", OutputFile::Existing::kReplace, owner_);
  ASSERT_TRUE(full.has_value());
  auto failed = full->commit("profile");
  ASSERT_FALSE(failed.has_value());
  EXPECT_NE(failed.error().message.find("no space left"), std::string::npos);
}

// A regular file behind a descriptor, as after a shell's "> f".
class OutputFileDescriptorTest : public OutputFileTest {
 protected:
  // Descriptors that programs inherit do not close on exec.
  int redirect(int flags) {
    const int fd = ::open(path_.c_str(), flags | O_CREAT, 0644);
    descriptor_.reset(fd);
    return fd;
  }
  [[nodiscard]] Result<std::string> write(const std::string& path) {
    auto file = OutputFile::open(path, OutputFile::Existing::kReplace, owner_);
    if (!file) return tl::unexpected<Error>(file.error());
    return file->commit("profile");
  }
  UniqueFd descriptor_;
};

TEST_F(OutputFileDescriptorTest, ALinkToOneIsWrittenThroughAndStays) {
  const int fd = redirect(O_WRONLY | O_TRUNC);
  // As /dev/stdout -> /proc/self/fd/1, and one that leads there by way of another.
  const std::string link = directory_ + "/stdout", far = directory_ + "/far";
  fs::create_symlink("/proc/self/fd/" + std::to_string(fd), link);
  fs::create_symlink("stdout", far);
  for (const std::string& path : {link, far}) {
    auto written = write(path);
    ASSERT_TRUE(written.has_value()) << written.error().message;
    EXPECT_EQ(*written, path);
    EXPECT_TRUE(fs::is_symlink(path)) << path;
  }
  EXPECT_EQ(content(path_), "profileprofile") << "one offset, as for the shell";
  EXPECT_EQ(entries(), 3u);
}

TEST_F(OutputFileDescriptorTest, NumbersAreWrittenThrough) {
  const std::string fd = std::to_string(redirect(O_WRONLY | O_TRUNC));
  EXPECT_TRUE(write("/dev/fd/" + fd).has_value());
  EXPECT_TRUE(write("/proc/self/fd/" + fd).has_value());
  EXPECT_EQ(content(path_), "profileprofile");
}

TEST_F(OutputFileDescriptorTest, AppendingKeepsWhatIsThere) {
  std::ofstream(path_) << "before ";
  const int fd = redirect(O_WRONLY | O_APPEND);
  EXPECT_TRUE(write("/dev/fd/" + std::to_string(fd)).has_value());
  EXPECT_EQ(content(path_), "before profile");
}

TEST_F(OutputFileDescriptorTest, NotOpenOrNotForWritingIsAnErrorAndTheLinkStays) {
  const int fd = redirect(O_RDONLY);
  const std::string link = directory_ + "/stdout";
  fs::create_symlink("/proc/self/fd/" + std::to_string(fd), link);
  auto written = write(link);
  ASSERT_FALSE(written.has_value());
  EXPECT_NE(written.error().message.find("not open for writing"), std::string::npos)
      << written.error().message;
  descriptor_.reset();
  EXPECT_FALSE(write(link).has_value());
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(content(path_), "");
}

TEST_F(OutputFileDescriptorTest, LinksOfTheDeviceDirectoryStay) {
  if (::geteuid() != 0) GTEST_SKIP() << "mounting a small tmpfs needs root";
  std::ofstream(path_) << "old and longer content";
  const pid_t child = ::fork();
  if (child == 0) {  // a /dev of its own
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", "/dev", "tmpfs", 0, "size=64k") != 0)
      ::_exit(10);
    if (::symlink(path_.c_str(), "/dev/link") != 0) ::_exit(11);
    if (!write("/dev/link")) ::_exit(12);
    if (!fs::is_symlink("/dev/link")) ::_exit(13);
    ::_exit(content(path_) == "profile" ? 0 : 14);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(OutputFileTest, FullDiskLeavesNoHalfFile) {
  if (::geteuid() != 0) GTEST_SKIP() << "mounting a small tmpfs needs root";
  const pid_t child = ::fork();
  if (child == 0) {  // in a mount namespace of its own
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", directory_.c_str(), "tmpfs", 0, "size=64k") != 0)
      ::_exit(10);
    auto file = OutputFile::open(path_, OutputFile::Existing::kReplace, owner_);
    if (!file) ::_exit(11);
    auto written = file->commit(std::string(1 << 20, 'x'));
    if (written) ::_exit(12);
    if (written.error().message.find("no space left") == std::string::npos) ::_exit(13);
    { const OutputFile gone = std::move(*file); }
    if (entries() != 0) ::_exit(14);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(OutputFileTest, BelongsToTheInvoker) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  owner_.uid = 65534;
  owner_.gid = 65534;
  auto file = OutputFile::open(path_, OutputFile::Existing::kReplace, owner_);
  ASSERT_TRUE(file->commit("profile").has_value());
  struct stat info = {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, 65534u);
  EXPECT_EQ(info.st_gid, 65534u);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
}

TEST(DefaultOutputName, IsOnePlainComponent) {
  ::setenv("TZ", "UTC", 1);
  ::tzset();
  EXPECT_EQ(default_output_name("python3", 42, 1'700'000'000),
            "gpu-python3-42-20231114T221320.pb.gz");
  EXPECT_EQ(default_output_name("../a b\n", 1, 0), "gpu-.._a_b_-1-19700101T000000.pb.gz");
  EXPECT_EQ(default_output_name("", 1, 0), "gpu-process-1-19700101T000000.pb.gz");
}

}  // namespace
}  // namespace gpuprof::cli

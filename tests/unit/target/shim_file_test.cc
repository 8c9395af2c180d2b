// SPDX-License-Identifier: Apache-2.0
#include "daemon/target/shim_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "proto/memfd_layout.h"

namespace gpuprof::target {
namespace {

// A file with the shim's name, mapped executable into this process while the object lives.
class MappedFile {
 public:
  explicit MappedFile(const char* name) {
    char pattern[] = "/tmp/gpuprof-shim-XXXXXX";
    directory_ = ::mkdtemp(pattern);
    path_ = directory_ + "/" + name;
    fd_.reset(::open(path_.c_str(), O_CREAT | O_RDWR, 0755));
    EXPECT_EQ(::ftruncate(fd_.get(), 4096), 0);
    address_ = ::mmap(nullptr, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd_.get(), 0);
    EXPECT_NE(address_, MAP_FAILED);
  }
  ~MappedFile() {
    ::munmap(address_, 4096);
    std::filesystem::remove_all(directory_);
  }
  [[nodiscard]] ino_t inode() const {
    struct stat info = {};
    ::fstat(fd_.get(), &info);
    return info.st_ino;
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string directory_, path_;
  UniqueFd fd_;
  void* address_ = nullptr;
};

// As a shim has it.
class MappedMemfd {
 public:
  MappedMemfd() : fd_(::memfd_create(GPUPROF_MEMFD_NAME, MFD_CLOEXEC)) {
    EXPECT_EQ(::ftruncate(fd_.get(), 4096), 0);
    address_ = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd_.get(), 0);
    EXPECT_NE(address_, MAP_FAILED);
  }
  ~MappedMemfd() { ::munmap(address_, 4096); }
  MappedMemfd(const MappedMemfd&) = delete;
  MappedMemfd& operator=(const MappedMemfd&) = delete;

 private:
  UniqueFd fd_;
  void* address_ = nullptr;
};

const auto kSelf = static_cast<uint32_t>(::getpid());

TEST(ShimFile, FoundByName) {
  const MappedFile mapped(kShimFileName);
  auto file = ShimFile::find(kSelf);
  ASSERT_TRUE(file.has_value()) << file.error().message;
  EXPECT_EQ(file->inode, mapped.inode());
  EXPECT_EQ(file->path, mapped.path());
}

TEST(ShimFile, RenamedOneFoundByItsProbes) {
  const MappedFile mapped("libinnocent.so");
  const MappedMemfd memfd;
  EXPECT_FALSE(ShimFile::find(kSelf).has_value());
  std::multiset<ino_t> asked;
  auto file = ShimFile::find(kSelf, [&](int fd) {
    struct stat info = {};
    ::fstat(fd, &info);
    asked.insert(info.st_ino);
    return info.st_ino == mapped.inode();
  });
  ASSERT_TRUE(file.has_value()) << file.error().message;
  EXPECT_EQ(file->inode, mapped.inode());
  for (const ino_t inode : asked) EXPECT_EQ(asked.count(inode), 1u) << inode;
}

TEST(ShimFile, LibrariesAreNotReadWhereNoShimRuns) {
  const MappedFile mapped("libinnocent.so");
  size_t asked = 0;
  const auto count = [&](int) { return ++asked > 0; };
  EXPECT_EQ(ShimFile::find(kSelf, count).error().code, Code::kNoTarget);
  EXPECT_EQ(asked, 0u);
  const MappedMemfd memfd;
  EXPECT_TRUE(ShimFile::find(kSelf, count).has_value());
}

TEST(ShimFile, ReplacedFileIsNeverTakenForTheMappedOne) {
  const MappedFile mapped(kShimFileName);
  const ino_t inode = mapped.inode();
  const std::string other = mapped.path() + ".new";
  ::close(::open(other.c_str(), O_CREAT | O_WRONLY, 0644));
  ASSERT_EQ(::rename(other.c_str(), mapped.path().c_str()), 0);
  auto file = ShimFile::find(kSelf);
  if (file) {  // by map_files: the old file itself
    EXPECT_EQ(file->inode, inode);
  } else {  // without the capability for map_files
    EXPECT_NE(file.error().message.find("replaced"), std::string::npos) << file.error().message;
  }
}

TEST(ShimFile, NoneAndNoProcess) {
  auto none = ShimFile::find(kSelf);
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code, Code::kNoTarget);
  EXPECT_EQ(ShimFile::find(INT32_MAX).error().code, Code::kNotFound);
}

TEST(ShimFile, OpenRefusesWhatIsNoFile) {
  EXPECT_FALSE(ShimFile::open("/tmp").has_value());
  EXPECT_FALSE(ShimFile::open("/nonexistent/lib.so").has_value());
}

}  // namespace
}  // namespace gpuprof::target

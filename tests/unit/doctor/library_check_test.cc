// SPDX-License-Identifier: Apache-2.0
#include "daemon/doctor/library_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <iterator>

#include "tests/unit/doctor/made_up_root.h"

namespace gpuprof::doctor {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

const std::string kShim = "/opt/shim.so";

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class LibraryCheckTest : public MadeUpRoot {
 protected:
  void SetUp() override {
    MadeUpRoot::SetUp();
    process_.root = open();
    process_.user = {kNobody, kNobody, {}, false};
    auto self = loading_process(static_cast<uint32_t>(::getpid()));
    ASSERT_TRUE(self.has_value());
    process_.machine = self->machine;
  }
  // This machine's C library, as the made-up process has mapped it.
  void give_libc() {
    auto self = loading_process(static_cast<uint32_t>(::getpid()));
    for (target::Mapping& mapping : self->mappings) {
      const std::string_view name = mapping.file_name();
      if (!name.starts_with("libc.") && !name.starts_with("libc-")) continue;
      copy(mapping.path, mapping.path);
      process_.mappings.push_back(std::move(mapping));
      return;
    }
    FAIL() << "no C library is mapped";
  }
  void expect(LibraryFault fault, const std::string& text, const std::string& path = kShim) {
    const LibraryCheck check = check_library(process_, path);
    EXPECT_STREQ(library_fault_name(check.fault), library_fault_name(fault)) << check.text;
    EXPECT_THAT(check.text, HasSubstr(text));
    EXPECT_EQ(check.text.find('\n'), std::string::npos);
    EXPECT_EQ(check.text.empty(), fault == LibraryFault::kNone) << check.text;
  }
  LoadingProcess process_;
};

TEST_F(LibraryCheckTest, OneThatCanBeLoaded) {
  give_libc();
  copy(INJECTION, kShim);
  expect(LibraryFault::kNone, "");
  process_.started_unix_ns = UINT64_MAX;
  expect(LibraryFault::kNone, "");
  process_.started_unix_ns = 1;  // 1970
  expect(LibraryFault::kChangedSince, "put there or changed after the process started (1970-01-0");
}

TEST_F(LibraryCheckTest, PathsThatLeadNowhere) {
  expect(LibraryFault::kNoPath, "it is empty", "");
  expect(LibraryFault::kNoPath, "no absolute path", "shim.so");
  expect(LibraryFault::kMissing, "there is no /opt in its root file system");
  write("/opt/other", "");
  expect(LibraryFault::kMissing, "there is no such file in its root file system: mount");
  expect(LibraryFault::kMissing, "/opt/other is no directory", "/opt/other/shim.so");
  link("/gone.so", kShim);
  expect(LibraryFault::kMissing, "/opt/shim.so is a link to /gone.so, which does not exist");
  link("loop.so", "/opt/loop.so");
  expect(LibraryFault::kMissing, "a link in a circle", "/opt/loop.so");
}

TEST_F(LibraryCheckTest, OneThatIsOutsideOfItsRootOnly) {
  const std::string outside = root_ + "-outside.so";
  std::ofstream(outside) << "x";
  expect(LibraryFault::kMissing, "in its root file system (there is one outside of it): mount",
         outside);
  std::filesystem::remove(outside);
}

TEST_F(LibraryCheckTest, OurOwnRootHasNoOtherSide) {
  process_.root.reset(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  process_.is_our_root = true;
  const LibraryCheck check = check_library(process_, root_ + "/none.so");
  EXPECT_THAT(check.text, StartsWith("there is no such file: install the shim there"));
}

TEST_F(LibraryCheckTest, FilesOfTheWrongKind) {
  std::filesystem::create_directories(root_ + kShim);
  expect(LibraryFault::kNoFile, "that is a directory (docker run -v makes one");
  std::filesystem::remove(root_ + kShim);
  ASSERT_EQ(::mkfifo((root_ + kShim).c_str(), 0644), 0);
  expect(LibraryFault::kNoFile, "no regular file");
  std::filesystem::remove(root_ + kShim);
  write(kShim, "");
  expect(LibraryFault::kNoElf, "it is empty: copy the shim anew");
  write(kShim, "#!/bin/sh\n");
  expect(LibraryFault::kNoElf, "it is no library: not an ELF file");
  write(kShim, bytes_of(INJECTION).substr(0, 2000));
  expect(LibraryFault::kNoElf, ": copy the shim anew");
}

TEST_F(LibraryCheckTest, PermissionsOfItsUser) {
  copy(INJECTION, kShim);
  ::chmod((root_ + kShim).c_str(), 0640);
  expect(LibraryFault::kNotReadable, "its user (uid 65534) may not read it: chmod o+r " + kShim);
  ::chmod((root_ + "/opt").c_str(), 0700);
  expect(LibraryFault::kNotSearchable, "may not enter the directory /opt: chmod o+x /opt");
  process_.user.overrides = true;
  expect(LibraryFault::kNone, "");
}

TEST_F(LibraryCheckTest, ForAnotherProcessor) {
  copy(INJECTION, kShim);
  const std::string other = process_.machine == "aarch64" ? "x86-64" : "aarch64";
  const std::string ours = std::exchange(process_.machine, other);
  expect(LibraryFault::kOtherMachine, "it is for " + ours + ", and the process runs on " + other);
  std::string small = bytes_of(INJECTION);
  small[4] = 1;  // ELFCLASS32
  write(kShim, small);
  process_.machine = ours;
  expect(LibraryFault::kOtherMachine, "it is for a 32-bit processor, and the process runs on");
}

TEST_F(LibraryCheckTest, CLibraryThatIsTooOld) {
  give_libc();
  copy(NEEDS_NEWER, kShim);
  expect(LibraryFault::kOldLibc, "it needs GLIBC_2.99 of libc.so.6, and ");
  expect(LibraryFault::kOldLibc, " has no more than GLIBC_2.");
}

TEST_F(LibraryCheckTest, MuslHasNoGlibc) {
  copy(NEEDS_NEWER, kShim);
  expect(LibraryFault::kNone, "");  // no C library is known at all
  target::Mapping musl;
  musl.path = "/lib/ld-musl-x86_64.so.1";
  process_.mappings.push_back(musl);
  expect(LibraryFault::kMusl, "musl");
}

TEST_F(LibraryCheckTest, NoInjectionLibrary) {
  give_libc();
  copy(NO_ENTRY, kShim);
  expect(LibraryFault::kNoExport, "no function InitializeInjection");
}

}  // namespace
}  // namespace gpuprof::doctor

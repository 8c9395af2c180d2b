// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/cuda_compat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

namespace gpuprof::cli {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr CompatWish kAuto{CompatWish::Mode::kAuto, {}, false};

// Libraries by path; the loader finds the one named "libcuda.so.1".
class FakeDrivers {
 public:
  FakeDrivers& has(const std::string& library, uint32_t version, int init = 0) {
    answers_[library] = {version, library, init};
    return *this;
  }
  FakeDrivers& fails(const std::string& library, const std::string& why) {
    failures_[library] = why;
    return *this;
  }
  AskDriver ask() {
    return [this](const std::string& library, const std::string& before,
                  uint32_t bound) -> Result<DriverAnswer> {
      asked.push_back(library + (before.empty() ? "" : " with " + before));
      if (failures_.contains(library)) return fail(Code::kNotFound, failures_[library]);
      if (!answers_.contains(library)) return fail(Code::kNotFound, library + ": not there");
      DriverAnswer out = answers_[library];
      if (out.version <= bound) out.init.reset();
      return out;
    };
  }
  std::vector<std::string> asked;

 private:
  std::map<std::string, DriverAnswer> answers_;
  std::map<std::string, std::string> failures_;
};

CompatChoice choose(FakeDrivers& drivers, const CompatWish& wish = kAuto,
                    const std::vector<std::string>& found = {"/c"}) {
  return choose_compat(wish, found, {}, drivers.ask());
}

TEST(ChooseCompat, ANewerOneThatWorksIsPutFirst) {
  FakeDrivers drivers;
  drivers.has("libcuda.so.1", 12020).has("/c/libcuda.so.1", 12090);
  const CompatChoice choice = choose(drivers);
  EXPECT_EQ(choice.directory, "/c");
  EXPECT_EQ(choice.line,
            "cuda_compat: /c (CUDA 12.9) is put before the driver's libcuda (CUDA 12.2), in the "
            "command's LD_LIBRARY_PATH");
  EXPECT_THAT(drivers.asked, ElementsAre("libcuda.so.1", "/c/libcuda.so.1 with /c"));
}

TEST(ChooseCompat, NeverAnOlderOrAnEqualOne) {
  for (const uint32_t version : {12020u, 12010u, 11080u}) {
    FakeDrivers drivers;
    drivers.has("libcuda.so.1", 12020).has("/c/libcuda.so.1", version);
    const CompatChoice choice = choose(drivers);
    EXPECT_EQ(choice.directory, "") << version;
    EXPECT_THAT(choice.line, HasSubstr("not newer than the driver's 12.2")) << version;
  }
}

TEST(ChooseCompat, NotOnAGpuOfAnotherClass) {
  for (const auto& [init, why] : std::map<int, std::string>{
           {804, "data-center GPUs"}, {803, "kernel module (cuInit 803)"}, {100, "cuInit 100"}}) {
    FakeDrivers drivers;
    drivers.has("libcuda.so.1", 12020).has("/c/libcuda.so.1", 12090, init);
    const CompatChoice choice = choose(drivers);
    EXPECT_EQ(choice.directory, "");
    EXPECT_THAT(choice.line, HasSubstr(why));
  }
}

TEST(ChooseCompat, OneThatDoesNotLoadIsNotUsed) {
  FakeDrivers drivers;
  drivers.has("libcuda.so.1", 12020)
      .fails("/c/libcuda.so.1", "libnvrm_gpu.so: cannot open shared object file");
  const CompatChoice choice = choose(drivers);
  EXPECT_EQ(choice.directory, "");
  EXPECT_THAT(choice.line, HasSubstr("libnvrm_gpu.so: cannot open"));
  EXPECT_THAT(choice.line, HasSubstr("come with the board's driver"));
}

TEST(ChooseCompat, TheFirstThatCanBeUsedOfSeveral) {
  FakeDrivers drivers;
  drivers.has("libcuda.so.1", 12040)
      .has("/a/libcuda.so.1", 12020)
      .has("/b/libcuda.so.1", 13000)
      .has("/c/libcuda.so.1", 13010);
  EXPECT_EQ(choose(drivers, kAuto, {"/a", "/b", "/c"}).directory, "/b");
  std::vector<std::string> many;
  for (int i = 0; i < 30; ++i) many.push_back("/n" + std::to_string(i));
  drivers.asked.clear();
  EXPECT_EQ(choose(drivers, kAuto, many).directory, "");
  EXPECT_LE(drivers.asked.size(), 5u) << "each may take its patience";
}

TEST(ChooseCompat, WithoutADriverThereIsNothingToCompareWith) {
  FakeDrivers drivers;
  drivers.has("/c/libcuda.so.1", 12090);
  EXPECT_THAT(choose(drivers).line, HasSubstr("cannot be asked"));
  EXPECT_EQ(choose(drivers).directory, "");
  EXPECT_THAT(choose(drivers, kAuto, {}).line, HasSubstr("no compat directory"));
}

TEST(ChooseCompat, NobodyAskedNothingIsTold) {
  const CompatWish quiet{CompatWish::Mode::kAuto, {}, true};
  FakeDrivers drivers;
  EXPECT_EQ(choose(drivers, quiet, {}).line, "");
  EXPECT_EQ(choose(drivers, quiet).line, "");
  drivers.has("libcuda.so.1", 12020).has("/c/libcuda.so.1", 12010);
  EXPECT_EQ(choose(drivers, quiet).line, "");
  drivers.has("/c/libcuda.so.1", 12090);
  EXPECT_THAT(choose(drivers, quiet).line, HasSubstr("is put before"));
}

TEST(ChooseCompat, NeverAsksNothing) {
  FakeDrivers drivers;
  EXPECT_EQ(choose(drivers, {}).line, "");
  EXPECT_THAT(drivers.asked, IsEmpty());
}

class CompatFiles : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "compat-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string folder_;
};

TEST_F(CompatFiles, TheDriverMayLieWhereTheLoaderDoesNotLook) {
  std::ofstream(folder_ + "/libcuda.so.1") << "x";
  FakeDrivers drivers;
  drivers.has(folder_ + "/libcuda.so.1", 12020).has("/c/libcuda.so.1", 12090);
  const CompatChoice choice =
      choose_compat(kAuto, {"/c"}, {folder_ + "/none", folder_}, drivers.ask());
  EXPECT_EQ(choice.directory, "/c") << choice.line;
}

// A /run/opengl-driver that holds compat itself, or a LD_LIBRARY_PATH that already leads there.
TEST_F(CompatFiles, TheOneThatIsFoundAnyway) {
  std::ofstream(folder_ + "/libcuda.so.1") << "x";
  fs::create_symlink(folder_, folder_ + "-link");
  FakeDrivers drivers;
  drivers.has("libcuda.so.1", 12090).has(folder_ + "/libcuda.so.1", 12090);
  DriverAnswer found{12090, folder_ + "-link/libcuda.so.1", {}};
  const AskDriver ask = [&](const std::string& library, const std::string& before, uint32_t bound) {
    return library == "libcuda.so.1" ? Result<DriverAnswer>(found)
                                     : drivers.ask()(library, before, bound);
  };
  const CompatChoice choice = choose_compat(kAuto, {folder_}, {}, ask);
  EXPECT_EQ(choice.directory, "");
  EXPECT_THAT(choice.line, HasSubstr("that is found without it"));
  fs::remove(folder_ + "-link");
}

TEST_F(CompatFiles, TheWordOnTheCommandLine) {
  EXPECT_EQ(compat_wish("", false)->mode, CompatWish::Mode::kNever);
  EXPECT_EQ(compat_wish("", true)->mode, CompatWish::Mode::kAuto);
  EXPECT_TRUE(compat_wish("", true)->quiet);
  EXPECT_EQ(compat_wish("never", true)->mode, CompatWish::Mode::kNever);
  EXPECT_EQ(compat_wish("auto", false)->mode, CompatWish::Mode::kAuto);
  EXPECT_FALSE(compat_wish("auto", true)->quiet);
  EXPECT_EQ(compat_wish(folder_, false).error().code, Code::kInvalidArgument);
  EXPECT_THAT(compat_wish(folder_, false).error().message, HasSubstr("libcuda.so.1"));
  std::ofstream(folder_ + "/libcuda.so.1") << "x";
  EXPECT_EQ(compat_wish(folder_ + "/./", false)->directory, folder_);
  const fs::path before = fs::current_path();
  fs::current_path(folder_);
  EXPECT_EQ(compat_wish(".", false)->directory, fs::canonical(folder_).string());
  fs::current_path(before);
  fs::create_directories(folder_ + "/a:b");
  EXPECT_THAT(compat_wish(folder_ + "/a:b", false).error().message, HasSubstr("cannot name"));
}

TEST(SetCompat, BeforeAllElse) {
  Environment environment({"LD_LIBRARY_PATH=/a:/b"});
  set_compat(environment, "/c");
  EXPECT_EQ(environment.value("LD_LIBRARY_PATH"), "/c:/a:/b");
  Environment empty({"LD_LIBRARY_PATH="});
  set_compat(empty, "/c");
  EXPECT_EQ(empty.value("LD_LIBRARY_PATH"), "/c") << "an empty entry is the working directory";
}

TEST(OtherLibcuda, AnRpathIsTold) {
  CompatChoice choice;
  EXPECT_FALSE(other_libcuda(choice, 7, "/l/libcuda.so.535.1").has_value());
  choice.library = "/c/libcuda.so.575.1";
  EXPECT_FALSE(other_libcuda(choice, 7, "").has_value());
  EXPECT_FALSE(other_libcuda(choice, 7, "/c/libcuda.so.575.1").has_value());
  EXPECT_THAT(*other_libcuda(choice, 7, "/l/libcuda.so.535.1"),
              HasSubstr("process 7 loaded /l/libcuda.so.535.1"));
}

}  // namespace
}  // namespace gpuprof::cli

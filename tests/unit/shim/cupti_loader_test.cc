// SPDX-License-Identifier: Apache-2.0
// Finding libcupti: the order of places and what is said of them, on made-up layouts. With real
// libraries and absolute paths: tests/cupti.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "shim/cupti/loader.h"
#include "shim/cupti/mapped_objects.h"

namespace gpuprof::cupti {
namespace {

TEST(Loader, ReleaseComesFromSonameLikeNamesOnly) {
  EXPECT_EQ(version_of_file("libcupti.so.13").major, 13u);
  EXPECT_EQ(version_of_file("libcupti.so.13").minor, FileVersion::kAnyMinor);
  EXPECT_EQ(version_of_file("libcupti.so.11.8").order(), 11'008u);
  EXPECT_EQ(version_of_file("libcupti.so.12.9.79").order(), 12'009u);
  for (const char* name :
       {"libcupti.so.2025.3.1", "libcupti.so", "libcupti.so.x", "libcuptiextra.so.13",
        "libcupti.so.9", "libcupti.so.-12", "libcupti.so.12a", "libcupti.so. 12"}) {
    EXPECT_EQ(version_of_file(name).major, 0u) << name;
  }
}

TEST(Loader, AttemptsDropTheRepeatedPathAndCountWhatFindsNoRoom) {
  Attempts attempts;
  attempts.add("/a/b.so", "/a/b.so: cannot open");
  attempts.add("c", "no");
  EXPECT_STREQ(attempts.text(), "/a/b.so: cannot open; c: no");
  for (const char* file : {"libcupti.so.13", "libcupti.so.12"}) {
    attempts.add(file, (std::string(file) + ": cannot open shared object file: No such file or "
                                            "directory")
                           .c_str());
  }
  EXPECT_STREQ(attempts.text(),
               "/a/b.so: cannot open; c: no; libcupti.so.13, libcupti.so.12: not found");
  attempts.add("c", "no");  // named already
  attempts.add("/d/libcupti.so.13",
               "libdep.so: cannot open shared object file: No such file or directory");
  EXPECT_NE(strstr(attempts.text(), "libdep.so: cannot open"), nullptr) << attempts.text();
  for (int i = 0; i < 100; ++i) {
    attempts.add(("/some/long/path/to/nothing" + std::to_string(i)).c_str(), "why");
  }
  const std::string text = attempts.text();
  EXPECT_LT(text.size(), 768u);
  const size_t last = text.rfind("nothing");
  const int told = std::stoi(text.substr(last + 7)) + 1;
  EXPECT_NE(text.find(": why; and " + std::to_string(100 - told) + " more"), std::string::npos)
      << text;
}

TEST(Loader, LongNamesAndErrorsLeaveRoomForOthers) {
  Attempts attempts;
  attempts.add(("/" + std::string(4000, 'p') + "/libcupti.so.13").c_str(),
               std::string(4000, 'e').c_str());
  attempts.add("/d/libcupti.so.12", "not found");
  const std::string text = attempts.text();
  EXPECT_NE(text.find("ppp...ppp"), std::string::npos);
  EXPECT_NE(text.find("p/libcupti.so.13: eee"), std::string::npos) << text;
  EXPECT_NE(text.find("; /d/libcupti.so.12: not found"), std::string::npos) << text;
}

class LoaderLayout : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/gpuprof-layout-XXXXXX";
    root_ = mkdtemp(pattern);
  }
  void TearDown() override { (void)!system(("rm -rf " + root_).c_str()); }

  void place(const std::string& file) {
    (void)!system(
        ("mkdir -p $(dirname " + root_ + file + ") && cp " STUB_CUPTI " " + root_ + file).c_str());
  }
  /// What load_cupti() finds with `mapped` being a mapped object below the root.
  std::string found(const std::string& mapped, uint32_t driver_major,
                    const std::string& run_path = "") {
    auto objects = std::make_unique<MappedObjects>();
    objects->add((root_ + mapped).c_str());
    objects->add_run_path(run_path.c_str(), (root_ + mapped).c_str());
    CuptiLibrary library;
    Attempts attempts;
    if (load_cupti(*objects, "", 1000 * driver_major, &library, &attempts) != LoadResult::kLoaded) {
      return attempts.text();
    }
    char real[4096] = {};
    if (realpath(library.path, real) == nullptr) return library.path;
    return std::string(real).substr(root_.size());
  }

  std::string root_;
};

TEST_F(LoaderLayout, PipOfCuda13NextToCudart) {
  place("/s/nvidia/cu13/lib/libcupti.so.13");
  EXPECT_EQ(found("/s/nvidia/cu13/lib/libcudart.so.13", 13), "/s/nvidia/cu13/lib/libcupti.so.13");
}

TEST_F(LoaderLayout, PipOfCuda12FromCudart) {
  place("/s/nvidia/cuda_cupti/lib/libcupti.so.12");
  (void)!system(("mkdir -p " + root_ + "/s/nvidia/cuda_runtime/lib").c_str());
  EXPECT_EQ(found("/s/nvidia/cuda_runtime/lib/libcudart.so.12", 13),
            "/s/nvidia/cuda_cupti/lib/libcupti.so.12");
}

TEST_F(LoaderLayout, PipFromTorch) {
  place("/s/nvidia/cu13/lib/libcupti.so.13");
  (void)!system(("mkdir -p " + root_ + "/s/torch/lib").c_str());
  EXPECT_EQ(found("/s/torch/lib/libtorch_cuda.so", 13), "/s/nvidia/cu13/lib/libcupti.so.13");
}

TEST_F(LoaderLayout, TritonsOwn) {
  place("/s/triton/backends/nvidia/lib/cupti/libcupti.so.12");
  (void)!system(("mkdir -p " + root_ + "/s/triton/_C").c_str());
  EXPECT_EQ(found("/s/triton/_C/libtriton.so", 13),
            "/s/triton/backends/nvidia/lib/cupti/libcupti.so.12");
}

TEST_F(LoaderLayout, NewestThatTheDriverAllows) {
  for (const char* name : {"/l/libcupti.so.11.8", "/l/libcupti.so.12", "/l/libcupti.so.13",
                           "/l/libcupti.so.2025.3.1"}) {
    place(name);
  }
  EXPECT_EQ(found("/l/libcudart.so.12", 12), "/l/libcupti.so.12");
}

TEST_F(LoaderLayout, OlderOneWhereTheNewestCannotBeLoaded) {
  place("/l/libcupti.so.12");
  std::ofstream(root_ + "/l/libcupti.so.13") << "no ELF file";
  EXPECT_EQ(found("/l/libcudart.so.13", 13), "/l/libcupti.so.12");
}

TEST_F(LoaderLayout, OnlyNewerOrOlderOnesAreNamed) {
  place("/l/libcupti.so.99");
  EXPECT_NE(found("/l/libcudart.so.12", 12)
                .find(root_ + "/l/libcupti.so.99: newer than the driver's CUDA 12.0"),
            std::string::npos);
  place("/o/libcupti.so.11.7");
  EXPECT_NE(
      found("/o/libcudart.so.11", 11).find(root_ + "/o/libcupti.so.11.7: older than CUDA 11.8"),
      std::string::npos);
}

TEST_F(LoaderLayout, WhereTheApplicationsOwnLibrariesWouldHaveItFrom) {
  place("/store/cupti/lib/libcupti.so.12");
  place("/l/libcupti.so.12");
  EXPECT_EQ(found("/l/libapp.so", 13, "/nowhere:" + root_ + "/store/cupti/lib"),
            "/store/cupti/lib/libcupti.so.12");
  (void)!system(("mkdir -p " + root_ + "/app/lib").c_str());
  for (const char* run_path :
       {"$ORIGIN/../../store/cupti/lib", "relative:${ORIGIN}/../../store/cupti/lib"}) {
    EXPECT_EQ(found("/app/lib/libapp.so", 13, run_path), "/store/cupti/lib/libcupti.so.12");
  }
  EXPECT_EQ(found("/l/libcudart.so.12", 13, "/nowhere"), "/l/libcupti.so.12");
}

TEST_F(LoaderLayout, WheelsOfThePackageFolderInUse) {
  place("/v/lib/python3.12/site-packages/nvidia/cuda_cupti/lib/libcupti.so.12");
  EXPECT_EQ(found("/v/lib/python3.12/site-packages/numpy/core/_multiarray_umath.so", 12),
            "/v/lib/python3.12/site-packages/nvidia/cuda_cupti/lib/libcupti.so.12");
}

/// The libcupti that MappedObjects finds once `files` were loaded; "" if none.
std::string mapped_cupti(const std::vector<std::string>& files) {
  for (const std::string& file : files)
    EXPECT_NE(dlopen(file.c_str(), RTLD_NOW), nullptr) << dlerror();
  auto objects = std::make_unique<MappedObjects>();
  objects->read();
  return objects->cupti() == nullptr ? "" : objects->cupti();
}

// In programs of their own: what a test loads stays.
TEST_F(LoaderLayout, MappedCopyIsKnownByWhatItExports) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  place("/m/vendored.so");
  place("/m/libcupti-1a2b3c4d.so.12.9.79");
  const auto expect = [this](std::vector<std::string> files, std::string wanted) {
    for (std::string& file : files) file = root_ + file;
    if (!wanted.empty()) wanted = root_ + wanted;
    const std::string is = mapped_cupti(files);
    if (is != wanted) fprintf(stderr, "%s instead of %s\n", is.c_str(), wanted.c_str());
    TearDown();
    _exit(is == wanted ? 0 : 1);
  };
  const std::string named = "/m/libcupti-1a2b3c4d.so.12.9.79";
  EXPECT_EXIT(expect({}, ""), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(expect({"/m/vendored.so"}, "/m/vendored.so"), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(expect({"/m/vendored.so", named}, named), ::testing::ExitedWithCode(0), "");
}

TEST_F(LoaderLayout, NothingElseIsTriedBesideAMappedCopy) {
  place("/l/libcupti.so.12");
  auto objects = std::make_unique<MappedObjects>();
  objects->add((root_ + "/l/libcudart.so.12").c_str());
  objects->add_cupti("/gone/libcupti.so.12", "libcupti.so.12");
  CuptiLibrary library;
  Attempts attempts;
  EXPECT_EQ(load_cupti(*objects, "", 12000, &library, &attempts), LoadResult::kNotFound);
  EXPECT_EQ(std::string(attempts.text()).rfind("/gone/libcupti.so.12: ", 0), 0u) << attempts.text();
  EXPECT_EQ(std::string(attempts.text()).find(root_), std::string::npos);
}

TEST(MappedObjects, ManyLibrariesOfADirectoryTakeOnePlace) {
  auto objects = std::make_unique<MappedObjects>();
  for (int i = 0; i < 100; ++i)
    objects->add(("/t/lib/libtorch_" + std::to_string(i) + ".so").c_str());
  objects->add("/t/lib/libcuda.so.1");
  objects->add("/u/lib/libcudart.so.13");
  EXPECT_EQ(objects->count(), 3u);
  EXPECT_STREQ(objects->find("libcuda.so"), "/t/lib/libcuda.so.1");
  EXPECT_STREQ(objects->path(2), "/u/lib/libcudart.so.13");
}

}  // namespace
}  // namespace gpuprof::cupti

// SPDX-License-Identifier: Apache-2.0
// Finding libcupti: the order of places and what is said of them, on made-up layouts. With real
// libraries and absolute paths: tests/cupti.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "shim/cupti/file_version.h"
#include "shim/cupti/loader.h"
#include "shim/cupti/mapped_objects.h"

namespace gpuprof::cupti {
namespace {

TEST(Loader, ReleaseComesFromSonameLikeNamesOnly) {
  const auto parts = [](const char* name) {
    const FileVersion version = version_of_file(name);
    return std::array{version.major, version.minor, version.patch};
  };
  constexpr uint32_t kAny = FileVersion::kAny;
  EXPECT_EQ(parts("libcupti.so.13"), (std::array{13u, kAny, kAny}));
  EXPECT_EQ(parts("libcupti.so.11.8"), (std::array{11u, 8u, kAny}));
  EXPECT_EQ(parts("libcupti.so.12.9.79"), (std::array{12u, 9u, 79u}));
  EXPECT_EQ(parts("libcupti.so.12.9.79.1"), (std::array{12u, 9u, 79u}));
  for (const char* name :
       {"libcupti.so.2025.3.1", "libcupti.so", "libcupti.so.x", "libcuptiextra.so.13",
        "libcupti.so.9", "libcupti.so.-12", "libcupti.so.12a", "libcupti.so. 12", "libcupti.so.",
        "libcupti.so.12.", "libcupti.so.12..9", "libcupti.so.12.bak", "libcupti.so.12.9.orig",
        "libcupti.so.12.9.79.old", "libcupti.so.12.9-1", "libcupti.so.12~", "libcupti.so.12.9.79 ",
        "libcupti.so.4294967308", "libcupti.so.12.99999999999"}) {
    EXPECT_EQ(version_of_file(name).major, 0u) << name;
  }
  EXPECT_EQ(version_after("cuda-", "cuda-12.9").minor, 9u);
  EXPECT_EQ(version_after("cuda-", "cuda-12.9-old").major, 0u);
}

TEST(Loader, NamesHaveOneOrder) {
  // Each before those that follow it.
  const std::vector<std::string> names = {
      "libcupti.so.13",      "libcupti.so.12",       "libcupti.so.12.9",
      "libcupti.so.12.9.79", "libcupti.so.12.9.019", "libcupti.so.12.9.19",
      "libcupti.so.12.0",    "libcupti.so.11.8",     "libcupti.so.11.8.87"};
  std::vector<NamedVersion> named;
  for (const std::string& name : names) {
    named.push_back(named_version(name.c_str(), version_of_file(name.c_str())));
    EXPECT_EQ(named.back().name, name);
  }
  for (size_t i = 0; i < named.size(); ++i) {
    for (size_t k = 0; k < named.size(); ++k) {
      EXPECT_EQ(named[i].goes_before(named[k]), i < k) << named[i].name << ' ' << named[k].name;
    }
  }
  EXPECT_TRUE(named_version("libcupti.so.12.bak", {}).empty());
  EXPECT_TRUE(
      named_version(("libcupti.so.12." + std::string(256, '1')).c_str(), {12, 1, 1}).empty());
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

// A directory gives its entries in the order of their making, or in its reverse: both are tried.
TEST_F(LoaderLayout, BackupsAreNotTriedWhateverTheirOrder) {
  for (const char* end : {".bak", ".orig", ".old", ".debug", ".save", ".9.79.bak", "~", "-old"}) {
    for (const bool is_broken : {false, true}) {
      for (const bool is_first : {false, true}) {
        const std::string backup = std::string("/l/libcupti.so.12") + end;
        if (!is_first) place("/l/libcupti.so.12");
        place(backup);
        if (is_broken) std::ofstream(root_ + backup) << "no ELF file";
        if (is_first) place("/l/libcupti.so.12");
        EXPECT_EQ(found("/l/libcudart.so.12", 13), "/l/libcupti.so.12") << end << is_broken;
        TearDown();
      }
    }
  }
}

TEST_F(LoaderLayout, ABackupAloneIsNoLibcupti) {
  place("/l/libcupti.so.12.bak");
  const auto objects = std::make_unique<MappedObjects>();
  CuptiLibrary library;
  Attempts attempts;
  EXPECT_EQ(load_cupti(*objects, (root_ + "/l").c_str(), 13000, &library, &attempts),
            LoadResult::kNotFound);
  EXPECT_EQ(attempts.text(), root_ + "/l: no libcupti there");
}

TEST_F(LoaderLayout, EachFileOfOneReleaseIsTried) {
  for (const bool is_first : {false, true}) {
    // By number, not by text, and on after each one that cannot be loaded.
    if (!is_first) place("/l/libcupti.so.12.9.79");
    for (const char* broken :
         {"/l/libcupti.so.12.9.101", "/l/libcupti.so.12.9.0101", "/l/libcupti.so.12"}) {
      place(broken);
      std::ofstream(root_ + broken).flush();
    }
    if (is_first) place("/l/libcupti.so.12.9.79");
    place("/l/libcupti.so.12.9.9");
    EXPECT_EQ(found("/l/libcudart.so.12", 13), "/l/libcupti.so.12.9.79");
    TearDown();
  }
}

TEST_F(LoaderLayout, SonameBeforeFilesThatAreCalledLikeAnOlderRelease) {
  for (const char* name : {"/l/libcupti.so.12.0", "/l/libcupti.so.12", "/l/libcupti.so.12.9.79",
                           "/l/libcupti.so.12.99"}) {
    place(name);
  }
  EXPECT_EQ(found("/l/libcudart.so.12", 13), "/l/libcupti.so.12");
}

TEST_F(LoaderLayout, OverrideDirectoryHasTheSameOrder) {
  for (const bool is_first : {false, true}) {
    if (!is_first) place("/o/libcupti.so.12");
    place("/o/libcupti.so.12.bak");
    if (is_first) place("/o/libcupti.so.12");
    const auto objects = std::make_unique<MappedObjects>();
    CuptiLibrary library;
    Attempts attempts;
    EXPECT_EQ(load_cupti(*objects, (root_ + "/o").c_str(), 13000, &library, &attempts),
              LoadResult::kLoaded);
    EXPECT_EQ(library.path, root_ + "/o/libcupti.so.12");
    TearDown();
  }
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

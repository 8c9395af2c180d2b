// SPDX-License-Identifier: Apache-2.0
#include "daemon/target/cuda_driver.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace gpuprof::target {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A root file system of its own.
class CudaDriverTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "cuda-driver-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void link(const std::string& target, const std::string& path) const {
    fs::create_directories(fs::path(root_ + path).parent_path());
    fs::create_symlink(target, root_ + path);
  }
  [[nodiscard]] UniqueFd open() const { return std::move(*open_root(root_)); }
  // The kernel module that is loaded, as `root_` has it.
  [[nodiscard]] std::string kernel() const { return kernel_module_release(root_); }

  std::string root_;
};

TEST_F(CudaDriverTest, KernelModuleByEitherFile) {
  EXPECT_EQ(kernel(), "");
  write("/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.216.01  Tue Sep 17 16:54:04 UTC 2024\n"
        "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n");
  EXPECT_EQ(kernel(), "535.216.01");
  write("/sys/module/nvidia/version", "580.159.04\n");
  EXPECT_EQ(kernel(), "580.159.04");
  write("/sys/module/nvidia/version", "none\n");
  EXPECT_EQ(kernel(), "535.216.01");
}

TEST(ReleaseInBanner, OpenModuleAndNonsense) {
  EXPECT_EQ(release_in_banner("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  "
                              "580.95.05  Release Build  (x@y)\n"),
            "580.95.05");
  EXPECT_EQ(release_in_banner("NVRM version: NVIDIA UNIX\t580.95.05\n"), "580.95.05");
  EXPECT_EQ(release_in_banner(""), "");
  EXPECT_EQ(release_in_banner("no\n580.95.05\n"), "");
  EXPECT_EQ(release_in_banner(std::string(400, ' ') + std::string(100, '9')), "");
}

TEST(CudaDriver, AsTheShimTells) {
  ShimStatus status;
  status.libcuda_path = "/usr/local/cuda-13.0/compat/libcuda.so.580.95.05";
  status.driver_version = 13000;
  status.kernel_driver_version = "535.216.01";
  CudaDriver driver = cuda_driver_of(status, "580.159.04");
  EXPECT_EQ(driver.kind, GPUPROF_LIBCUDA_COMPAT);
  EXPECT_EQ(driver.release, "580.95.05");
  EXPECT_EQ(driver.kernel_module, "580.159.04") << "ours counts, the page is the target's";
  EXPECT_EQ(describe(driver),
            "CUDA 13.0 by /usr/local/cuda-13.0/compat/libcuda.so.580.95.05 (cuda_compat), kernel "
            "module 580.159.04");
  ASSERT_TRUE(explain_failure(driver).has_value());
  EXPECT_THAT(*explain_failure(driver), HasSubstr("older than the kernel module 580.159.04"));

  driver = cuda_driver_of(status, "");
  EXPECT_EQ(driver.kernel_module, "535.216.01") << "Tegra and some containers hide it from us";
  status.kernel_driver_version = "surely; rm -rf";
  status.driver_version = 4'000'000'000;
  driver = cuda_driver_of(status, "");
  EXPECT_EQ(driver.kernel_module, "");
  EXPECT_EQ(driver.cuda_version, 0u);
  EXPECT_EQ(describe(driver),
            "CUDA by /usr/local/cuda-13.0/compat/libcuda.so.580.95.05 (cuda_compat)");
  EXPECT_FALSE(explain_failure(driver).has_value());

  EXPECT_EQ(describe(cuda_driver_of(ShimStatus(), "580.1")), "");
}

TEST(CudaDriver, NamesAndVersions) {
  EXPECT_STREQ(libcuda_kind_name(GPUPROF_LIBCUDA_COMPAT), "cuda_compat");
  EXPECT_STREQ(libcuda_kind_name(GPUPROF_LIBCUDA_NIX), "nix");
  EXPECT_STREQ(libcuda_kind_name(static_cast<gpuprof_libcuda_kind>(77)), "unknown");
  EXPECT_EQ(cuda_version_text(12090), "12.9");
  EXPECT_EQ(cuda_version_text(11040), "11.4");
  EXPECT_EQ(cuda_version_text(0), "");
  EXPECT_EQ(cuda_version_text(UINT32_MAX), "");
}

// Maps a file of `path` into this process for as long as it lives.
class Mapped {
 public:
  explicit Mapped(const std::string& path) {
    fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path) << std::string(4096, 'x');
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    at_ = ::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  }
  ~Mapped() { ::munmap(at_, 4096); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

 private:
  void* at_ = nullptr;
};

TEST_F(CudaDriverTest, MappedWithoutAShim) {
  const auto self = static_cast<uint32_t>(::getpid());
  auto none = mapped_cuda_driver(self, "580.159.04");
  ASSERT_TRUE(none.has_value());
  EXPECT_EQ(none->path, "");
  {
    const Mapped runtime(root_ + "/lib/libcudart.so.13");  // is no libcuda
    const Mapped old(root_ + "/compat\n/libcuda.so.580.95.05");
    fs::remove(root_ + "/compat\n/libcuda.so.580.95.05");
    auto driver = mapped_cuda_driver(self, "580.159.04");
    ASSERT_TRUE(driver.has_value());
    EXPECT_EQ(driver->kind, GPUPROF_LIBCUDA_COMPAT);
    EXPECT_EQ(driver->release, "580.95.05") << "a deleted file's name, too";
    EXPECT_EQ(driver->path.find('\n'), std::string::npos);
    EXPECT_FALSE(driver->of_opengl_driver);
  }
  EXPECT_EQ(mapped_cuda_driver(UINT32_MAX / 4, "").error().code, Code::kNotFound);
}

TEST_F(CudaDriverTest, CompatDirectoriesOfTheRootNewestFirst) {
  EXPECT_THAT(compat_directories(open()), IsEmpty());
  for (const char* toolkit : {"cuda-12.9", "cuda-12.10", "cuda-13.0", "cuda-13.0-old", "cuda-x"})
    write(std::string("/usr/local/") + toolkit + "/compat/libcuda.so.1", "");
  write("/usr/local/cuda-11.8/lib64/libcudart.so.11.0", "");
  link("/usr/local/cuda-12.9", "/usr/local/cuda");  // absolute: of that root, not of ours
  write("/usr/local/cuda-12.8/compat/lib.real/libcuda.so.1", "");
  EXPECT_THAT(compat_directories(open()),
              ElementsAre("/usr/local/cuda/compat", "/usr/local/cuda-13.0/compat",
                          "/usr/local/cuda-12.10/compat", "/usr/local/cuda-12.8/compat/lib.real"));
}

TEST_F(CudaDriverTest, HostileRoots) {
  const std::string outside = root_ + "-outside";
  fs::create_directories(outside);
  std::ofstream(outside + "/libcuda.so.1") << "x";
  link("../../../../../../../.." + outside, "/usr/local/cuda-13.0/compat");
  fs::create_directories(root_ + "/usr/local/cuda-12.0/compat");
  ASSERT_EQ(::mkfifo((root_ + "/usr/local/cuda-12.0/compat/libcuda.so.1").c_str(), 0600), 0);
  fs::create_directories(root_ + "/usr/local/cuda-12.1/compat/libcuda.so.1");
  link("libcuda.so.1", "/usr/local/cuda-12.2/compat/libcuda.so.1");
  EXPECT_THAT(compat_directories(open()), IsEmpty());
  fs::create_directories(root_ + "/etc");
  ASSERT_EQ(::mkfifo((root_ + "/etc/nv_tegra_release").c_str(), 0600), 0);
  EXPECT_FALSE(is_tegra(open()));
  for (int i = 1; i <= 100; ++i)
    write("/usr/local/cuda-" + std::to_string(i) + ".3/compat/libcuda.so.1", "");
  EXPECT_EQ(compat_directories(open()).size(), 32u);
  fs::remove_all(outside);
}

TEST_F(CudaDriverTest, TegraByItsReleaseFileOrItsDeviceTree) {
  EXPECT_FALSE(is_tegra(open()));
  write("/sys/firmware/devicetree/base/compatible", std::string("nvidia,p3737\0raspberrypi", 24));
  EXPECT_FALSE(is_tegra(open()));
  write("/sys/firmware/devicetree/base/compatible",
        std::string("nvidia,p3737-0000+p3701\0nvidia,tegra234", 39));
  EXPECT_TRUE(is_tegra(open()));
  fs::remove_all(root_ + "/sys");
  write("/etc/nv_tegra_release", "# R36 (release), REVISION: 4.3\n");
  EXPECT_TRUE(is_tegra(open()));
}

}  // namespace
}  // namespace gpuprof::target

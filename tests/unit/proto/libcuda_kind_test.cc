// SPDX-License-Identifier: Apache-2.0
#include "proto/libcuda_kind.h"

#include <gtest/gtest.h>

#include <string>

namespace gpuprof {
namespace {

TEST(LibcudaKind, ByPathAndByRelease) {
  struct Case {
    const char* path;
    const char* kernel;
    gpuprof_libcuda_kind kind;
  };
  for (const Case& it : {
           Case{"/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04", "580.159.04",
                GPUPROF_LIBCUDA_SYSTEM},
           {"/usr/lib/libcuda.so.1", "580.1", GPUPROF_LIBCUDA_SYSTEM},
           {"/opt/integration/lib/libcuda.so.1", "", GPUPROF_LIBCUDA_SYSTEM},
           {"/srv/compat/lib/libcuda.so.1", "580.1", GPUPROF_LIBCUDA_SYSTEM},
           {"/opt/cuda/lib/compat/libcuda.so.1", "", GPUPROF_LIBCUDA_SYSTEM},
           {"/opt/conda/cuda-compat/libcuda.so.1", "", GPUPROF_LIBCUDA_COMPAT},
           // The container toolkit mounts the image's compat files among the driver's.
           {"/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05", "570.10", GPUPROF_LIBCUDA_COMPAT},
           {"/usr/local/cuda-13.0/compat/libcuda.so.580.95.05", "", GPUPROF_LIBCUDA_COMPAT},
           {"/usr/local/cuda/compat/lib.real/libcuda.so.580.95.05", "580.95.05",
            GPUPROF_LIBCUDA_COMPAT},
           {"/usr/local/cuda-12.2/compat/libcuda.so.1.1", "", GPUPROF_LIBCUDA_COMPAT},
           {"/nix/store/abc-cuda12.2-cuda_compat-12.2.34/compat/libcuda.so.1.1", "",
            GPUPROF_LIBCUDA_COMPAT},
           {"/usr/lib/wsl/drivers/x/libcuda.so.1.1", "", GPUPROF_LIBCUDA_WSL},
           {"/usr/lib/aarch64-linux-gnu/tegra/libcuda.so.1.1", "", GPUPROF_LIBCUDA_TEGRA},
           {"/usr/lib/aarch64-linux-gnu/nvidia/libcuda.so.1.1", "", GPUPROF_LIBCUDA_TEGRA},
           {"/nix/store/abc-nvidia-l4t-cuda-35.4.1/lib/libcuda.so.1.1", "", GPUPROF_LIBCUDA_TEGRA},
           {"/opt/nvidia/l4t-gpu-libs/openrm/libcuda.so.580.00", "", GPUPROF_LIBCUDA_TEGRA},
           {"/nix/store/abc-nvidia-x11-580.95.05/lib/libcuda.so.580.95.05", "580.95.05",
            GPUPROF_LIBCUDA_NIX},
           {"/run/opengl-driver/lib/libcuda.so.1", "580.95.05", GPUPROF_LIBCUDA_NIX},
           {"/nix/store/abc-nvidia-x11-570.10/lib/libcuda.so.570.10", "580.95.05",
            GPUPROF_LIBCUDA_COMPAT},
           {"", "580.1", GPUPROF_LIBCUDA_UNKNOWN},
       }) {
    EXPECT_EQ(libcuda_kind_of(it.path, it.kernel), it.kind) << it.path;
  }
}

TEST(LibcudaKind, ReleaseInTheName) {
  EXPECT_STREQ(release_in_name("/l/libcuda.so.580.159.04"), "580.159.04");
  EXPECT_STREQ(release_in_name("libcuda.so.470.57"), "470.57");
  for (const char* path :
       {"/l/libcuda.so.1", "/l/libcuda.so.1.1", "/l/libcuda.so", "", "/l.so.580.1/libcuda.so.1",
        "/l/libcuda.so.580", "/l/libcuda.so.580.", "/l/libcuda.so.580..1", "/l/libcuda.so.580.1a",
        "/l/libcuda.so.580.1 (deleted)", "/l/libcuda.so.580.1.1.1.1",
        "/l/libcuda.so.580.00000000000000000000000000001"})
    EXPECT_STREQ(release_in_name(path), "") << path;
}

TEST(LibcudaKind, ReleasesCompareByNumber) {
  EXPECT_LT(compare_releases("580.95.05", "580.159.04"), 0);
  EXPECT_GT(compare_releases("580.159.04", "580.95.05"), 0);
  EXPECT_GT(compare_releases("1000.1", "999.1"), 0);
  EXPECT_EQ(compare_releases("580.95.05", "580.95.5"), 0);
  EXPECT_LT(compare_releases("580.95", "580.95.05"), 0);
  EXPECT_EQ(compare_releases("", "580.95"), 0);
  EXPECT_EQ(compare_releases("580.95", "1.1"), 0);
  EXPECT_LT(compare_releases("580.1", "99999999999999999999.1"), 0);
}

std::string explained(const char* path, const char* kernel, size_t capacity = 1024) {
  std::string out(capacity, 'x');
  const bool any = explain_libcuda(out.data(), capacity, path, kernel);
  out.resize(out.find('\0'));
  EXPECT_EQ(any, !out.empty());
  return out;
}

TEST(LibcudaKind, AFailureIsExplainedInOneLine) {
  const std::string older =
      explained("/usr/local/cuda-13.0/compat/libcuda.so.580.95.05", "580.159.04");
  EXPECT_NE(older.find("libcuda.so.580.95.05 is older than the kernel module 580.159.04"),
            std::string::npos);
  EXPECT_NE(older.find("803"), std::string::npos);
  EXPECT_NE(older.find("LD_LIBRARY_PATH"), std::string::npos);
  EXPECT_EQ(older.find('\n'), std::string::npos);
  const std::string newer = explained("/cuda/compat/libcuda.so.580.95.05", "535.1");
  EXPECT_NE(newer.find("804"), std::string::npos);
  EXPECT_EQ(explained("/cuda/compat/libcuda.so.580.95.05", "580.95.05"), "");
  EXPECT_EQ(explained("/cuda/compat/libcuda.so.1.1", "580.95.05"), "");
  EXPECT_EQ(explained("/cuda/compat/libcuda.so.580.95.05", ""), "");
  EXPECT_EQ(explained("/cuda/compat/libcuda.so.580.95.05", "535.1", 8).size(), 7u);
}

}  // namespace
}  // namespace gpuprof

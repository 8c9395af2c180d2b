// SPDX-License-Identifier: Apache-2.0
//
// CudaDriver: which libcuda a process runs on, and which kernel module is loaded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/base/unique_fd.h"
#include "daemon/target/shim_status.h"
#include "proto/memfd_layout.h"

namespace gpuprof::target {

struct CudaDriver {
  gpuprof_libcuda_kind kind = GPUPROF_LIBCUDA_UNKNOWN;
  std::string path;           // real path as the process sees it, printable; empty: none is mapped
  std::string release;        // "580.159.04" by the file's name, empty where that does not tell
  std::string kernel_module;  // release of the loaded one, empty where unknown, as on Tegra
  uint32_t cuda_version = 0;  // cuDriverGetVersion, 13000 is CUDA 13.0; 0 unknown
  bool of_opengl_driver = false;  // it is what /run/opengl-driver/lib holds in the process's root
};

// "system", "cuda_compat", "tegra", "wsl", "nix"; "unknown" out of range.
const char* libcuda_kind_name(gpuprof_libcuda_kind kind);

// "13.0" of 13000, empty of what is no version.
std::string cuda_version_text(uint32_t version);

// The NVIDIA kernel module's release, from /sys/module or /proc/driver below `root`; empty where
// there is none. The kernel is everybody's, so for a target, too, it is asked in our own root.
std::string kernel_module_release(const std::string& root = "");
// The release in the text of /proc/driver/nvidia/version; empty where there is none.
std::string release_in_banner(const std::string& text);

// As the shim in it tells; the kind is judged again from the path.
CudaDriver cuda_driver_of(const ShimStatus& status, const std::string& kernel_module);
// The libcuda that is mapped in `pid`, with a shim or without; none: an empty path. The version is
// not known. kNotFound, kPermission.
Result<CudaDriver> mapped_cuda_driver(uint32_t pid, const std::string& kernel_module);

// "CUDA 13.0 by /usr/lib/libcuda.so.580.159.04 (system), kernel module 580.159.04"; empty: none.
std::string describe(const CudaDriver& driver);
// Why CUDA fails in it, where the releases tell; see proto/libcuda_kind.h. Nothing says that it
// does fail: ask when it does.
std::optional<std::string> explain_failure(const CudaDriver& driver);

// Directories below `root` that hold a libcuda.so.1 of the forward-compatibility package, as paths
// in that root, the newest toolkit first. At most 32. Nothing is followed out of the root.
std::vector<std::string> compat_directories(const UniqueFd& root);
// A Jetson by its own files below `root`.
bool is_tegra(const UniqueFd& root);
// The root of a process, or our own for "/": an O_PATH descriptor.
Result<UniqueFd> open_root(const std::string& path);

}  // namespace gpuprof::target

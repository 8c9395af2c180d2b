// SPDX-License-Identifier: Apache-2.0
//
// ShimFile: the file of the shim that a process has mapped, opened and verified.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>

#include "daemon/base/result.h"
#include "daemon/base/unique_fd.h"

namespace gpuprof::target {

inline constexpr const char* kShimFileName = "libgpu-profiled-cupti.so";

// Probes attach through this descriptor, so that what was verified is what gets the probes, also
// when the path now names something else or lies in another mount namespace.
struct ShimFile {
  UniqueFd fd;  // O_RDONLY
  dev_t device = 0;
  ino_t inode = 0;
  std::string path;  // as the target sees it, printable

  // The shim's file in process `pid`: the executable mapping named libgpu-profiled-cupti.so, or,
  // where none has that name, the first whose file `has_our_probes` accepts (a renamed copy). Each
  // file is asked about once, and none in a process that does not map a shim's memfd.
  // Errors: kNotFound (no such process), kNoTarget (nothing mapped), kPermission, kIo.
  static Result<ShimFile> find(uint32_t pid,
                               const std::function<bool(int fd)>& has_our_probes = {});

  // A shim by its path in our own mount namespace (for `run`).
  static Result<ShimFile> open(const std::string& path);
};

}  // namespace gpuprof::target

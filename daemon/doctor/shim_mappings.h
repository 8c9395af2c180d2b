// SPDX-License-Identifier: Apache-2.0
//
// The files of the shim that a process has mapped.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/base/unique_fd.h"
#include "daemon/target/process.h"

namespace gpuprof::doctor {

// One for each file, by its executable mapping.
struct ShimMapping {
  std::string path;  // as the process sees it, without " (deleted)"
  uint64_t start = 0;
  uint64_t inode = 0;
};

std::vector<ShimMapping> shim_mappings(const std::vector<target::Mapping>& mappings);

// The file that is mapped is not (any more) the one that its path names in `root`.
bool is_replaced(const ShimMapping& shim, const UniqueFd& root);

// Is the process a fork that never called exec of one that has the shim? Both have it at the same
// address, which the kernel chooses anew at each exec.
bool is_fork_of(const std::vector<ShimMapping>& child, const std::vector<ShimMapping>& parent);

}  // namespace gpuprof::doctor

// SPDX-License-Identifier: Apache-2.0
#include "daemon/doctor/shim_mappings.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

#include "daemon/base/root_file.h"
#include "daemon/target/shim_file.h"

namespace gpuprof::doctor {

std::vector<ShimMapping> shim_mappings(const std::vector<target::Mapping>& mappings) {
  std::vector<ShimMapping> out;
  for (const target::Mapping& mapping : mappings) {
    if (!mapping.executable || mapping.file_name() != target::kShimFileName) continue;
    const auto same = [&](const ShimMapping& known) { return known.inode == mapping.inode; };
    if (std::ranges::any_of(out, same)) continue;
    const size_t folder = mapping.path.rfind('/') + 1;
    out.push_back({mapping.path.substr(0, folder + mapping.file_name().size()), mapping.start,
                   mapping.inode});
  }
  return out;
}

bool is_replaced(const ShimMapping& shim, const UniqueFd& root) {
  const UniqueFd file = open_in_root(root, shim.path, O_PATH);
  struct stat info = {};
  return !file.valid() || ::fstat(file.get(), &info) != 0 || info.st_ino != shim.inode;
}

bool is_fork_of(const std::vector<ShimMapping>& child, const std::vector<ShimMapping>& parent) {
  return std::ranges::any_of(child, [&](const ShimMapping& mine) {
    return std::ranges::any_of(parent, [&](const ShimMapping& theirs) {
      return mine.start == theirs.start && mine.inode == theirs.inode;
    });
  });
}

}  // namespace gpuprof::doctor

// SPDX-License-Identifier: Apache-2.0
//
// Cgroup: a control group by its directory, and which processes are in it or below.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "daemon/base/result.h"

namespace gpuprof::target {

// A value: nothing is kept open, a group that is removed has no members any more. Membership is
// what the kernel says of a process (cgroups(7), /proc/PID/cgroup) at the moment it is asked. Paths
// of mounts and of processes are both relative to our own cgroup namespace, so they compare.
class Cgroup {
 public:
  // `path`: a directory at or below a mount of cgroup or cgroup2. Errors, in one line: kNotFound,
  // kInvalidArgument (another file system).
  static Result<Cgroup> open(const std::string& path);
  // The same, of a real path and the text of /proc/self/mountinfo. `id` as id().
  static Result<Cgroup> in(const std::string& real_path, std::string_view mountinfo, uint64_t id);

  // In the unified hierarchy (v2) the number by which eBPF knows it, the directory's inode; 0: of
  // another hierarchy.
  [[nodiscard]] uint64_t id() const { return id_; }
  // Is the process in it, or below? False where it is gone.
  [[nodiscard]] bool contains(uint32_t pid) const;
  // The same, of the text of its /proc/PID/cgroup.
  [[nodiscard]] bool contains_line_of(std::string_view text) const;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;         // in the hierarchy: "/" or "/a/b"
  std::string controllers_;  // of the hierarchy, ",memory," or ",name=systemd,"; empty: unified
  uint64_t id_ = 0;
};

}  // namespace gpuprof::target

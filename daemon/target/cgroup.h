// SPDX-License-Identifier: Apache-2.0
//
// Cgroup: a control group by its directory, and which processes are in it or below.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "daemon/base/result.h"

namespace gpuprof::target {

// One line of /proc/PID/cgroup (cgroups(7)): "4:cpu,cpuacct:/path"; the unified hierarchy's is
// "0::/path".
struct CgroupLine {
  std::string_view controllers;
  std::string_view path;  // begins with '/'; may have colons
};

// Takes the next line of that form out of `text`, and what stands before it; nullopt: none is left.
std::optional<CgroupLine> take_cgroup_line(std::string_view& text);

// More of /proc/PID/cgroup is not looked at: twelve v1 hierarchies with paths of 4 KiB.
inline constexpr size_t kMostCgroupBytes = 64u << 10;

// Of a process; nullopt where it is gone, or may not be looked at.
std::optional<std::string> cgroup_text(uint32_t pid);

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
  // Is a process in it, or below, that has this text in its /proc/PID/cgroup?
  [[nodiscard]] bool contains_line_of(std::string_view text) const;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;         // in the hierarchy: "/" or "/a/b"
  std::string controllers_;  // of the hierarchy, ",memory," or ",name=systemd,"; empty: unified
  uint64_t id_ = 0;
};

}  // namespace gpuprof::target

// SPDX-License-Identifier: Apache-2.0
//
// Which container and pod a process is in, as its cgroup's path tells it.
#pragma once

#include <string>
#include <string_view>

namespace gpuprof::target {

struct Container {
  // What the engine knows it by: 64 hex digits (docker, containerd, CRI-O, podman; 32 and a number
  // on AWS Fargate), or a machine's name (systemd-nspawn, LXC). Empty: none is told.
  std::string id;
  std::string pod_uid;  // Kubernetes: 8-4-4-4-12 hex digits, or 32 of a static pod's hash

  friend bool operator==(const Container&, const Container&) = default;
};

// `text`: /proc/PID/cgroup (cgroups(7)), v1, v2 or both, as a reader in whatever cgroup namespace
// sees it: parents that its namespace hides are "..". Only whole names of known form count. The
// outermost one does: a process can make, and name, cgroups below the one that its engine gave it.
// Directories that an engine keeps for its monitors (conmon) are no containers.
Container parse_cgroup(std::string_view text);

}  // namespace gpuprof::target

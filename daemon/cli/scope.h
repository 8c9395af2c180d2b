// SPDX-License-Identifier: Apache-2.0
//
// Scope: which of a node's processes --all and --cgroup mean, less those of --exclude.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/cli/options.h"
#include "daemon/probe/probe_session.h"
#include "daemon/target/cgroup.h"

namespace gpuprof::cli {

// One --exclude: "comm:GLOB", "exe:GLOB" (the whole path, as the process sees it), "pid:N",
// "cgroup:PATH" (and all below).
struct Exclusion {
  enum class Kind { kComm, kExe, kPid, kCgroup };
  Kind kind = Kind::kComm;
  std::string text;
  uint32_t pid = 0;

  // kInvalidArgument, in one line.
  static Result<Exclusion> parse(const std::string& text);
};

class Scope {
 public:
  // kNotFound, kInvalidArgument: a cgroup that is none.
  static Result<Scope> create(const Options& options);

  // Is the process meant, by what /proc says of it now? False where it is gone.
  [[nodiscard]] bool has(uint32_t pid) const;
  // The same for one that may be gone, with what is known of it otherwise.
  [[nodiscard]] bool has(uint32_t pid, std::string_view comm, bool in_cgroup) const;

  // Do its cgroups alone leave it in? One read of /proc. Nullopt: it is gone.
  [[nodiscard]] std::optional<bool> in_cgroups(uint32_t pid) const;

  [[nodiscard]] bool all() const { return cgroups_.empty(); }
  // Can a process enter or leave it?
  [[nodiscard]] bool may_change() const { return !cgroups_.empty() || !excluded_.empty(); }
  // Tells the programs what they can decide themselves.
  Status tell(probe::ProbeSession& probes) const;

 private:
  [[nodiscard]] bool excludes(uint32_t pid, std::string_view comm) const;

  std::vector<target::Cgroup> cgroups_;   // empty: every process
  std::vector<target::Cgroup> excluded_;  // of the rules kCgroup
  std::vector<Exclusion> rules_;          // the others
};

}  // namespace gpuprof::cli

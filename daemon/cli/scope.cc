// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/scope.h"

#include <fnmatch.h>

#include <algorithm>
#include <charconv>

#include "daemon/target/process.h"

namespace gpuprof::cli {
namespace {

bool matches(const std::string& glob, const std::string& text) {
  return ::fnmatch(glob.c_str(), text.c_str(), 0) == 0;
}

// `text`: of a process's /proc/PID/cgroup.
bool any_contains(const std::vector<target::Cgroup>& cgroups, std::string_view text) {
  return std::ranges::any_of(
      cgroups, [&](const target::Cgroup& cgroup) { return cgroup.contains_line_of(text); });
}

// A process that is gone is in none.
bool any_contains(const std::vector<target::Cgroup>& cgroups, uint32_t pid) {
  return !cgroups.empty() && any_contains(cgroups, target::cgroup_text(pid).value_or(""));
}

}  // namespace

Result<Exclusion> Exclusion::parse(const std::string& text) {
  constexpr std::pair<std::string_view, Kind> kKinds[] = {{"comm:", Kind::kComm},
                                                          {"exe:", Kind::kExe},
                                                          {"pid:", Kind::kPid},
                                                          {"cgroup:", Kind::kCgroup}};
  Exclusion out;
  for (const auto& [prefix, kind] : kKinds) {
    if (!text.starts_with(prefix) || text.size() == prefix.size()) continue;
    out.kind = kind;
    out.text = text.substr(prefix.size());
    if (kind != Kind::kPid) return out;
    const char* end = out.text.data() + out.text.size();
    const auto [at, error] = std::from_chars(out.text.data(), end, out.pid);
    if (error == std::errc() && at == end && out.pid != 0 && out.pid <= INT32_MAX) return out;
    return fail(Code::kInvalidArgument, "--exclude: '" + out.text + "' is no process id");
  }
  return fail(Code::kInvalidArgument,
              "--exclude: '" + text + "' is none of comm:GLOB, exe:GLOB, pid:N and cgroup:PATH");
}

Result<Scope> Scope::create(const Options& options) {
  Scope out;
  for (const std::string& path : options.cgroups) {
    auto cgroup = target::Cgroup::open(path);
    if (!cgroup) return fail_with(cgroup.error(), "--cgroup");
    out.cgroups_.push_back(std::move(*cgroup));
  }
  for (const std::string& text : options.exclude) {
    auto rule = Exclusion::parse(text);
    if (!rule) return tl::unexpected<Error>(rule.error());
    if (rule->kind != Exclusion::Kind::kCgroup) {
      out.rules_.push_back(std::move(*rule));
      continue;
    }
    auto cgroup = target::Cgroup::open(rule->text);
    if (!cgroup) return fail_with(cgroup.error(), "--exclude");
    out.excluded_.push_back(std::move(*cgroup));
  }
  return out;
}

bool Scope::excludes(uint32_t pid, std::string_view comm) const {
  std::string exe;
  for (const Exclusion& rule : rules_) {
    if (rule.kind == Exclusion::Kind::kPid && rule.pid == pid) return true;
    if (rule.kind == Exclusion::Kind::kComm && matches(rule.text, std::string(comm))) return true;
    if (rule.kind != Exclusion::Kind::kExe) continue;
    if (exe.empty()) exe = target::executable_of(pid);
    if (matches(rule.text, exe)) return true;
  }
  return any_contains(excluded_, pid);
}

bool Scope::has(uint32_t pid) const {
  auto stat = target::process_stat(pid);
  return stat && has(pid, stat->comm, false);
}

bool Scope::has(uint32_t pid, std::string_view comm, bool in_cgroup) const {
  return (all() || in_cgroup || any_contains(cgroups_, pid)) && !excludes(pid, comm);
}

std::optional<bool> Scope::in_cgroups(uint32_t pid) const {
  const auto text = target::cgroup_text(pid);
  if (!text) return {};
  return (all() || any_contains(cgroups_, *text)) && !any_contains(excluded_, *text);
}

Status Scope::tell(probe::ProbeSession& probes) const {
  for (const target::Cgroup& cgroup : cgroups_) {
    if (cgroup.id() == 0) continue;
    if (auto ok = probes.set_cgroup(cgroup.id(), GPUPROF_CGROUP_WATCH); !ok) return ok;
  }
  for (const target::Cgroup& cgroup : excluded_) {
    if (cgroup.id() == 0) continue;
    if (auto ok = probes.set_cgroup(cgroup.id(), GPUPROF_CGROUP_EXCLUDE); !ok) return ok;
  }
  return all() ? probes.watch_all(true) : Status();
}

}  // namespace gpuprof::cli

// SPDX-License-Identifier: Apache-2.0
//
// Policy: which properties a file must have. A fresh one asks for nothing: each key switches on
// what it names. The keys are those of a policy file and of the command line alike.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/elfgate/result.h"

namespace gpuprof::elfgate {

enum class Rule { kAny, kRequire, kForbid };

// 2.17 is {2, 17}.
using VersionNumber = std::vector<uint64_t>;

struct VersionLimit {
  std::string name_space;  // GLIBC
  VersionNumber highest;
};

// A violation of `check` is no violation in files of that SONAME or name.
struct Exemption {
  std::string check;
  std::string glob;
};

struct ProbeRule {
  std::string provider;
  std::string name;
  std::string arguments;
};

struct Policy {
  std::optional<std::string> machine;
  std::optional<std::string> kind;         // library or executable
  std::optional<std::string> os_abi;       // none or gnu
  std::optional<std::string> interpreter;  // a glob, or "none"
  std::optional<std::string> soname;       // a glob, "any" or "none"

  std::vector<VersionLimit> max_versions;
  std::vector<std::string> allowed_versions;  // globs
  std::vector<std::string> denied_versions;
  Rule unlisted_versions = Rule::kAny;

  std::optional<std::vector<std::string>> allowed_needed;  // globs; unset: any
  std::vector<std::string> denied_needed;

  Rule rpath = Rule::kAny;
  Rule runpath = Rule::kAny;
  Rule runpath_relative = Rule::kAny;
  std::optional<std::string> runpath_first;
  std::vector<std::vector<std::string>> runpath_orders;
  std::vector<std::string> denied_runpath;

  std::optional<std::vector<std::string>> exports;  // exact; unset: any
  std::vector<std::string> denied_exports;
  std::optional<std::string> export_kind;  // function
  Rule unique_exports = Rule::kAny;
  std::vector<std::string> denied_imports;
  Rule unversioned_imports = Rule::kAny;
  Rule cxx_runtime = Rule::kAny;
  Rule ifunc = Rule::kAny;

  Rule textrel = Rule::kAny;
  Rule executable_stack = Rule::kAny;
  std::optional<std::string> relro;  // partial or full
  Rule static_tls = Rule::kAny;
  Rule tls_descriptors = Rule::kAny;
  Rule packed_relocations = Rule::kAny;
  Rule nodelete = Rule::kAny;
  Rule gnu_hash = Rule::kAny;
  Rule sysv_hash = Rule::kAny;
  uint64_t min_load_align_bytes = 0;
  Rule build_id = Rule::kAny;

  uint32_t max_isa_level = 0;  // 0: any
  Rule ibt = Rule::kAny;
  Rule shstk = Rule::kAny;
  Rule bti = Rule::kAny;
  Rule pac = Rule::kAny;

  std::optional<std::string> usdt_provider;  // its probes are exactly `probes`
  std::vector<ProbeRule> probes;
  std::optional<std::string> usdt_semaphores;  // the section of each probe's semaphore
  Rule usdt_duplicates = Rule::kAny;

  std::vector<std::string> off;  // names of checks
  std::vector<Exemption> exemptions;

  int include_depth = 0;  // of the file that is being read
};

// One key with what follows it on its line: "max-version", "GLIBC 2.17". Files named by `include`
// are looked for in `directory`.
Status set_policy_key(Policy& policy, std::string_view key, std::string_view arguments,
                      const std::string& directory);

// Lines of `KEY ARGUMENTS`; empty lines and those that begin with # are left out.
Status add_policy_text(Policy& policy, std::string_view text, const std::string& name,
                       const std::string& directory);
Status add_policy_file(Policy& policy, const std::string& path);

// What is checked where nobody says what: policies/permissive.policy, built in.
[[nodiscard]] std::string_view default_policy_text();

struct KeyHelp {
  std::string_view key;
  std::string_view arguments;
  std::string_view text;
};
[[nodiscard]] std::vector<KeyHelp> policy_keys();

// The names of the checks, which `off` and `exempt` take and violations carry.
[[nodiscard]] std::span<const std::string_view> check_names();

// fnmatch(3) without escapes.
[[nodiscard]] bool matches(const std::string& glob, std::string_view text);
[[nodiscard]] bool matches_any(const std::vector<std::string>& globs, std::string_view text);

// "2.17"; nothing else than numbers between dots.
[[nodiscard]] std::optional<VersionNumber> parse_version_number(std::string_view text);

}  // namespace gpuprof::elfgate

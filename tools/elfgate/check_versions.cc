// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "tools/elfgate/checks.h"

namespace gpuprof::elfgate {
namespace {

// Versions that say more than a number does.
struct Marker {
  std::string_view name;
  std::string_view why;
  std::string_view mend;
};

constexpr std::array kMarkers = {
    Marker{"GLIBC_ABI_DT_RELR", "glibc before 2.36 does not know it and refuses the file",
           "link with -Wl,-z,nopack-relative-relocs"},
    Marker{"GLIBC_ABI_GNU2_TLS", "glibc before 2.42 does not know it and refuses the file",
           "compile with -mtls-dialect=gnu"},
    Marker{"GLIBC_ABI_GNU_TLS", "glibc before 2.42 does not know it and refuses the file",
           "link with a linker that does not add it"},
    Marker{"GLIBC_PRIVATE", "what it names changes with every release of glibc",
           "do not use glibc's internal symbols"},
};

// "libc.so.6: dlopen, dlsym and 3 more"
std::string place_of(const VersionNeed& need) {
  std::string place(need.file);
  for (size_t i = 0; i < need.symbols.size(); ++i) {
    place.append(i == 0 ? ": " : ", ").append(need.symbols[i]);
  }
  if (need.symbol_count > need.symbols.size()) {
    place += " and " + std::to_string(need.symbol_count - need.symbols.size()) + " more";
  }
  return place;
}

std::string text_of(const VersionNumber& number) {
  std::string text;
  for (const uint64_t part : number) text += (text.empty() ? "" : ".") + std::to_string(part);
  return text;
}

Violation violation_of(const VersionNeed& need, std::string what) {
  Violation found{"versions", std::move(what), place_of(need), "", ""};
  found.why =
      "where " + std::string(need.file) + " does not define it, the loader refuses the file";
  found.mend = "link against older libraries, or look the symbols up with dlsym";
  for (const Marker& marker : kMarkers) {
    if (need.name != marker.name) continue;
    found.why = marker.why;
    found.mend = marker.mend;
  }
  return found;
}

// The limit of the longest namespace that `name` begins with: CXXABI_TM's before CXXABI's.
const VersionLimit* limit_of(const Policy& policy, std::string_view name) {
  const VersionLimit* found = nullptr;
  for (const VersionLimit& limit : policy.max_versions) {
    const std::string prefix = limit.name_space + "_";
    if (!name.starts_with(prefix)) continue;
    if (!found || limit.name_space.size() > found->name_space.size()) found = &limit;
  }
  return found;
}

void check_need(const VersionNeed& need, const Policy& policy, Findings& findings) {
  const std::string name(need.name);
  if (matches_any(policy.denied_versions, name)) {
    findings.add(violation_of(need, "needs " + name + ", which is denied"));
    return;
  }
  if (matches_any(policy.allowed_versions, name)) return;
  const VersionLimit* limit = limit_of(policy, name);
  if (!limit) {
    if (policy.unlisted_versions == Rule::kForbid) {
      findings.add(violation_of(need, "needs " + name + ", which the policy does not list"));
    }
    return;
  }
  const auto number =
      parse_version_number(std::string_view(name).substr(limit->name_space.size() + 1));
  if (!number) {
    findings.add(violation_of(need, "needs the marker " + name));
  } else if (*number > limit->highest) {
    findings.add(violation_of(need, "needs " + name + ", more than " + limit->name_space + "_" +
                                        text_of(limit->highest)));
  }
}

}  // namespace

void check_versions(const Facts& facts, const Policy& policy, Findings& findings) {
  for (const VersionNeed& need : facts.version_needs) {
    // The loader takes a weak one's absence for no error, but not that of the symbols that have it.
    if (!need.is_weak || need.strong_symbol_count > 0) check_need(need, policy, findings);
  }
}

}  // namespace gpuprof::elfgate

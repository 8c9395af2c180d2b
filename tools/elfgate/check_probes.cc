// SPDX-License-Identifier: Apache-2.0
//
// USDT probes: exactly the policy's, each with one site and a semaphore of its own.
#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "tools/elfgate/checks.h"

namespace gpuprof::elfgate {
namespace {

constexpr std::string_view kNotes = ".note.stapsdt";

std::string named(const UsdtProbe& probe) {
  return std::string(probe.provider) + ":" + std::string(probe.name);
}

std::string hex(uint64_t address) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  do text.insert(text.begin(), kDigits[address & 15]);
  while ((address >>= 4) != 0);
  return "0x" + text;
}

bool matches_provider(const Policy& policy, std::string_view provider) {
  return !policy.usdt_provider || matches(*policy.usdt_provider, provider);
}

void check_known(const UsdtProbe& probe, const Policy& policy, Findings& findings) {
  const auto rule =
      std::find_if(policy.probes.begin(), policy.probes.end(), [&probe](const ProbeRule& r) {
        return r.provider == probe.provider && r.name == probe.name;
      });
  const std::string where = std::string(kNotes) + ", site " + hex(probe.site);
  if (rule == policy.probes.end()) {
    findings.add({"usdt", "has the probe " + named(probe) + ", which the policy does not list",
                  where, "tracers that know the listed probes misunderstand it",
                  "remove it, or list it with usdt-probe"});
  } else if (rule->arguments != probe.arguments) {
    findings.add({"usdt",
                  named(probe) + " has the arguments '" + std::string(probe.arguments) +
                      "', not '" + rule->arguments + "'",
                  where, "the tracer reads other registers than the probe fills",
                  "fire it with its arguments in those registers"});
  } else if (!probe.is_site_code) {
    findings.add({"usdt", named(probe) + " has a site outside the code", where,
                  "no uprobe can be attached to it",
                  "link its notes together with its code, and strip them together"});
  }
}

void check_list(const Facts& facts, const Policy& policy, Findings& findings) {
  if (!policy.usdt_provider) return;
  std::set<std::string> seen;
  for (const UsdtProbe& probe : facts.probes) {
    if (!matches_provider(policy, probe.provider)) continue;
    seen.insert(named(probe));
    check_known(probe, policy, findings);  // each site: a tracer attaches to all of them
  }
  for (const ProbeRule& rule : policy.probes) {
    const std::string name = rule.provider + ":" + rule.name;
    if (!matches_provider(policy, rule.provider) || seen.contains(name)) continue;
    findings.add({"usdt", "has no probe " + name, std::string(kNotes),
                  "who attaches to it gets nothing",
                  "keep its note: no strip -R .note.stapsdt, no --gc-sections over its code"});
  }
}

void check_duplicates(const Facts& facts, const Policy& policy, Findings& findings) {
  if (policy.usdt_duplicates != Rule::kForbid) return;
  std::map<std::string, size_t> sites;
  for (const UsdtProbe& probe : facts.probes) {
    if (matches_provider(policy, probe.provider)) ++sites[named(probe)];
  }
  for (const auto& [name, count] : sites) {
    if (count < 2) continue;
    findings.add({"usdt-duplicates", name + " has " + std::to_string(count) + " sites",
                  std::string(kNotes),
                  "a tracer that attaches to one misses the others' records, one that attaches to "
                  "all may count twice",
                  "fire it from one function that is not inlined"});
  }
}

void check_semaphores(const Facts& facts, const Policy& policy, Findings& findings) {
  if (!policy.usdt_semaphores) return;
  std::map<uint64_t, std::string> owners;
  for (const UsdtProbe& probe : facts.probes) {
    if (!matches_provider(policy, probe.provider)) continue;
    const std::string where = std::string(kNotes) + ", semaphore " + hex(probe.semaphore);
    const std::string mend = "give each probe a 16-bit word in " + *policy.usdt_semaphores;
    if (probe.semaphore == 0) {
      findings.add(
          {"usdt-semaphores", named(probe) + " has no semaphore", std::string(kNotes),
           "the target cannot know whether anybody listens, and pays for records that nobody reads",
           mend});
      continue;
    }
    if (!matches(*policy.usdt_semaphores, probe.semaphore_section) || probe.semaphore % 2 != 0) {
      findings.add({"usdt-semaphores",
                    named(probe) + "'s semaphore is no word in " + *policy.usdt_semaphores, where,
                    "the kernel refuses to attach, or counts up something else", mend});
      continue;
    }
    const auto [owner, is_first] = owners.emplace(probe.semaphore, named(probe));
    if (!is_first && owner->second != named(probe)) {
      findings.add({"usdt-semaphores", named(probe) + " shares its semaphore with " + owner->second,
                    where, "who attaches to one switches the other on too", mend});
    }
  }
}

}  // namespace

void check_probes(const Facts& facts, const Policy& policy, Findings& findings) {
  check_list(facts, policy, findings);
  check_duplicates(facts, policy, findings);
  check_semaphores(facts, policy, findings);
}

}  // namespace gpuprof::elfgate

// SPDX-License-Identifier: Apache-2.0
//
// What else is loaded with the file, and from where: DT_NEEDED, DT_SONAME, PT_INTERP, run paths.
#include <algorithm>
#include <string>
#include <utility>

#include "tools/elfgate/checks.h"

namespace gpuprof::elfgate {
namespace {

void check_library(std::string_view name, std::string_view tag, const Policy& policy,
                   Findings& findings) {
  if (matches_any(policy.denied_needed, name)) {
    const bool is_cuda = name.starts_with("libcuda.so");
    findings.add({"needed", "needs " + std::string(name) + ", which is denied", std::string(tag),
                  is_cuda
                      ? "the file cannot be loaded where no driver is: a build sandbox, a CPU node"
                      : "the file cannot be loaded where that library is not found",
                  "do not link with it; dlopen it where it is used"});
  } else if (policy.allowed_needed && !matches_any(*policy.allowed_needed, name)) {
    findings.add(
        {"needed", "needs " + std::string(name) + ", which is not allowed", std::string(tag),
         "a target without that library, or with another version of it, cannot load the file",
         "do not link with it, link it statically with hidden symbols, or allow it"});
  }
}

void check_needed(const Facts& facts, const Policy& policy, Findings& findings) {
  for (const std::string_view name : facts.needed) {
    check_library(name, "DT_NEEDED", policy, findings);
  }
  for (const Filtee& filtee : facts.filtees) {
    check_library(filtee.name, filtee.tag, policy, findings);
  }
}

void check_soname(const Facts& facts, const Policy& policy, Findings& findings) {
  if (!policy.soname) return;
  const std::string has =
      facts.soname ? "SONAME is " + std::string(*facts.soname) : "has no SONAME";
  if (*policy.soname == "none") {
    if (facts.soname) {
      findings.add({"soname", has + ", it should have none", "DT_SONAME",
                    "a later library of that name is taken for this one", "link without -soname"});
    }
  } else if (!facts.soname || !matches(*policy.soname, *facts.soname)) {
    findings.add(
        {"soname", has + ", not " + *policy.soname, "DT_SONAME",
         "the loader knows a library by it: under another name it is loaded twice or not found",
         "link with -Wl,-soname," + *policy.soname});
  }
}

void check_interpreter(const Facts& facts, const Policy& policy, Findings& findings) {
  if (!policy.interpreter) return;
  const std::string has(facts.interpreter.empty() ? "none" : facts.interpreter);
  if (*policy.interpreter == "none" ? facts.interpreter.empty()
                                    : matches(*policy.interpreter, has)) {
    return;
  }
  findings.add(
      {"interpreter", "the interpreter is " + has + ", not " + *policy.interpreter, "PT_INTERP",
       "a system without that loader at that place says 'No such file or directory'",
       *policy.interpreter == "none" ? "link with -static"
                                     : "link with -Wl,--dynamic-linker=" + *policy.interpreter});
}

struct RunPath {
  std::string tag = "DT_RUNPATH";
  std::vector<std::string_view> entries;
};

std::vector<std::string_view> split(std::string_view path) {
  std::vector<std::string_view> entries;
  while (true) {
    const size_t colon = path.find(':');
    entries.push_back(path.substr(0, colon));
    if (colon == std::string_view::npos) return entries;
    path.remove_prefix(colon + 1);
  }
}

// The loader ignores DT_RPATH where there is DT_RUNPATH.
RunPath effective_path(const Facts& facts) {
  RunPath path;
  if (!facts.runpath && facts.rpath) path.tag = "DT_RPATH";
  const auto& text = facts.runpath ? facts.runpath : facts.rpath;
  if (text) path.entries = split(*text);
  return path;
}

size_t first_match(const RunPath& path, const std::string& glob) {
  const auto found =
      std::find_if(path.entries.begin(), path.entries.end(), [&glob](std::string_view entry) {
        // With or without a final slash it is the same directory.
        while (entry.size() > 1 && entry.back() == '/') entry.remove_suffix(1);
        return matches(glob, entry);
      });
  return static_cast<size_t>(found - path.entries.begin());
}

void check_order(const RunPath& path, const std::vector<std::string>& order, Findings& findings) {
  const std::string why = "the first directory that has a library wins, so another copy is loaded";
  size_t before = 0;
  std::string before_glob;
  for (const std::string& glob : order) {
    const size_t found = first_match(path, glob);
    if (found == path.entries.size()) {
      findings.add({"runpath", "no entry matches " + glob, path.tag, why,
                    "patchelf --add-rpath, or link with -Wl,-rpath"});
      return;
    }
    if (!before_glob.empty() && found <= before) {
      findings.add(
          {"runpath",
           std::string(path.entries[before]) + " comes after " + std::string(path.entries[found]),
           path.tag + " entries " + std::to_string(before + 1) + " and " +
               std::to_string(found + 1),
           why, "prepend the former: patchelf --set-rpath FIRST:$(patchelf --print-rpath FILE)"});
      return;
    }
    before = found;
    before_glob = glob;
  }
}

void check_entries(const RunPath& path, const Policy& policy, Findings& findings) {
  for (size_t i = 0; i < path.entries.size(); ++i) {
    const std::string_view entry = path.entries[i];
    const std::string where = path.tag + " entry " + std::to_string(i + 1);
    if (matches_any(policy.denied_runpath, entry)) {
      findings.add({"runpath", "searches " + std::string(entry) + ", which is denied", where,
                    "what lies there on a target decides what is loaded",
                    "patchelf --remove-rpath, or link without it"});
    }
    const bool is_absolute = entry.starts_with("/") || entry.starts_with("$");
    if (policy.runpath_relative == Rule::kForbid && !is_absolute) {
      findings.add({"runpath",
                    entry.empty() ? "searches the current directory (an empty entry)"
                                  : "searches " + std::string(entry) + " in the current directory",
                    where, "whoever may write there decides what is loaded",
                    "name it from $ORIGIN, or remove the entry"});
    }
  }
}

}  // namespace

void check_libraries(const Facts& facts, const Policy& policy, Findings& findings) {
  check_needed(facts, policy, findings);
  check_soname(facts, policy, findings);
  check_interpreter(facts, policy, findings);
}

void check_run_path(const Facts& facts, const Policy& policy, Findings& findings) {
  if (policy.rpath == Rule::kForbid && facts.rpath) {
    findings.add({"rpath", "has the run path " + std::string(*facts.rpath), "DT_RPATH",
                  "it goes before LD_LIBRARY_PATH and for what is loaded later too: no target can "
                  "override it",
                  "link without -rpath, or with -Wl,--enable-new-dtags"});
  }
  if (policy.runpath == Rule::kForbid && facts.runpath) {
    findings.add({"runpath", "has the run path " + std::string(*facts.runpath), "DT_RUNPATH",
                  "directories of the build machine mean something else, or nothing, on a target",
                  "link without -rpath, or patchelf --remove-rpath"});
    return;
  }
  if (policy.runpath == Rule::kRequire && !facts.runpath) {
    findings.add({"runpath", "has no run path", "DT_RUNPATH",
                  "its libraries are not found on the target",
                  "link with -Wl,-rpath, or patchelf --set-rpath"});
    return;
  }
  const RunPath path = effective_path(facts);
  check_entries(path, policy, findings);
  if (policy.runpath_first &&
      (path.entries.empty() || first_match(path, *policy.runpath_first) != 0)) {
    findings.add(
        {"runpath",
         "the first entry is " +
             (path.entries.empty() ? std::string("missing") : std::string(path.entries[0])) +
             ", not " + *policy.runpath_first,
         path.tag, "a library in an earlier directory is loaded instead",
         "prepend it, do not append: patchelf --set-rpath FIRST:$(patchelf --print-rpath FILE)"});
    // The order would be told wrong by the same entry.
    return;
  }
  for (const auto& order : policy.runpath_orders) check_order(path, order, findings);
}

}  // namespace gpuprof::elfgate

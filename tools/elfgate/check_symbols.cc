// SPDX-License-Identifier: Apache-2.0
#include <elf.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>

#include "tools/elfgate/checks.h"

namespace gpuprof::elfgate {
namespace {

std::string binding_of(const Symbol& symbol) {
  if (symbol.binding == STB_WEAK) return "weak ";
  if (symbol.binding == STB_GNU_UNIQUE) return "unique ";
  return "";
}

std::string_view kind_of(const Symbol& symbol) {
  switch (symbol.type) {
    case STT_FUNC:
    case STT_GNU_IFUNC:
      return "function";
    case STT_OBJECT:
      return "variable";
    case STT_TLS:
      return "thread-local variable";
    default:
      return "symbol of another type";
  }
}

void check_kind(const Symbol& symbol, const Policy& policy, Findings& findings) {
  if (!policy.export_kind) return;
  const std::string is = binding_of(symbol) + std::string(kind_of(symbol));
  if (is == "function") return;
  findings.add({"exports", "defines " + symbol.spelled() + " as a " + is + ", not a function",
                "the dynamic symbol table",
                symbol.binding == STB_WEAK ? "another file's definition can take its place"
                                           : "who looks it up calls it",
                "define it as a function, without __attribute__((weak))"});
}

void check_export(const Symbol& symbol, const Policy& policy, bool is_reported,
                  Findings& findings) {
  const std::string name = symbol.spelled();
  if (policy.unique_exports == Rule::kForbid && symbol.binding == STB_GNU_UNIQUE) {
    findings.add({"exports", "defines the unique symbol " + name, "the dynamic symbol table",
                  "one definition serves the whole process, whichever library came first, and none "
                  "of them is unloaded",
                  "compile with -fno-gnu-unique or hide it"});
    return;
  }
  if (is_reported) return;
  const bool is_denied = matches_any(policy.denied_exports, symbol.name);
  const bool is_extra = policy.exports && std::find(policy.exports->begin(), policy.exports->end(),
                                                    name) == policy.exports->end();
  if (!is_denied && !is_extra) {
    check_kind(symbol, policy, findings);
    return;
  }
  findings.add(
      {"exports",
       "defines the " + binding_of(symbol) + "symbol " + name + ", which is " +
           (is_denied ? "denied" : "not to be exported"),
       "the dynamic symbol table",
       "it can take the place of the target's symbol of that name, or the target's of it",
       "hide it: -fvisibility=hidden, a version script with local: *, -Wl,--exclude-libs,ALL"});
}

// Then a symbol of it is told by that check alone.
bool tells_cxx_runtime(const Policy& policy, const Findings& findings) {
  return policy.cxx_runtime == Rule::kForbid && findings.wants("cxx-runtime");
}

bool asks_of_exports(const Policy& policy) {
  return policy.exports || policy.export_kind || !policy.denied_exports.empty() ||
         policy.unique_exports != Rule::kAny;
}

void check_exports(const Facts& facts, const Policy& policy, Findings& findings) {
  if (!asks_of_exports(policy)) return;
  const bool tells_cxx = tells_cxx_runtime(policy, findings);
  // A version's own symbol, absolute and named as the version, which linkers add to the table.
  const std::unordered_set<std::string_view> versions(facts.version_definitions.begin(),
                                                      facts.version_definitions.end());
  std::set<std::string> missing;
  if (policy.exports) missing.insert(policy.exports->begin(), policy.exports->end());
  for (const Symbol& symbol : facts.symbols) {
    if (!is_export(symbol)) continue;
    if (symbol.is_absolute && versions.contains(symbol.name)) continue;
    missing.erase(symbol.spelled());
    check_export(symbol, policy, tells_cxx && is_cxx_runtime_name(symbol.name), findings);
  }
  for (const std::string& name : missing) {
    findings.add({"exports", "does not define " + name, "the dynamic symbol table",
                  "who looks it up does not find it: a plug-in is left out without a word",
                  "export it: default visibility, and global: in the version script"});
  }
}

void check_imports(const Facts& facts, const Policy& policy, Findings& findings) {
  if (policy.denied_imports.empty() && policy.unversioned_imports != Rule::kForbid) return;
  const bool tells_cxx = tells_cxx_runtime(policy, findings);
  for (const Symbol& symbol : facts.symbols) {
    if (symbol.is_defined || symbol.name.empty()) continue;
    if (tells_cxx && is_cxx_runtime_name(symbol.name)) continue;
    if (matches_any(policy.denied_imports, symbol.name)) {
      findings.add({"imports", "refers to " + symbol.spelled() + ", which is denied",
                    "the dynamic symbol table", "the policy says that no target is asked for it",
                    "do not use it, or look it up with dlsym and do without where it is missing"});
    } else if (policy.unversioned_imports == Rule::kForbid && is_unversioned_import(symbol)) {
      findings.add({"unversioned-imports",
                    "refers to " + std::string(symbol.name) + " without a version",
                    "the dynamic symbol table",
                    "no version tells which libraries have it: where none does, the loader refuses "
                    "the file",
                    "link with the library that defines it, of the oldest target's age"});
    }
  }
}

void check_cxx_runtime(const Facts& facts, const Policy& policy, Findings& findings) {
  if (policy.cxx_runtime != Rule::kForbid) return;
  for (const Symbol& symbol : facts.symbols) {
    if (!is_cxx_runtime_name(symbol.name)) continue;
    if (!symbol.is_defined) {
      findings.add({"cxx-runtime", "refers to " + symbol.spelled() + " of the C++ runtime",
                    "the dynamic symbol table",
                    "it binds to whatever C++ runtime the target has, of any version, or to none",
                    "link with -static-libstdc++ -static-libgcc and hide it, or do without it"});
    } else if (is_export(symbol)) {
      findings.add(
          {"cxx-runtime",
           "defines the " + binding_of(symbol) + "symbol " + symbol.spelled() +
               " of the C++ runtime",
           "the dynamic symbol table",
           "the target's own C++ runtime takes its place, or it the target's: two versions mix",
           "hide it: a version script with local: *, -Wl,--exclude-libs,ALL"});
    }
  }
}

void check_ifunc(const Facts& facts, const Policy& policy, Findings& findings) {
  if (policy.ifunc != Rule::kForbid) return;
  const auto symbol = std::find_if(facts.symbols.begin(), facts.symbols.end(), [](const Symbol& s) {
    return s.is_defined && s.type == STT_GNU_IFUNC;
  });
  const bool has_symbol = symbol != facts.symbols.end();
  if (!has_symbol && facts.relocations.irelative == 0) return;
  findings.add(
      {"ifunc",
       has_symbol ? "has the IFUNC " + symbol->spelled()
                  : "has " + std::to_string(facts.relocations.irelative) + " IFUNC relocations",
       has_symbol ? "the dynamic symbol table" : "the relocations",
       "its resolver runs while the file is being relocated, and other loaders (musl) have none",
       "choose the variant at run time through a pointer"});
}

}  // namespace

void check_symbols(const Facts& facts, const Policy& policy, Findings& findings) {
  check_exports(facts, policy, findings);
  check_imports(facts, policy, findings);
  check_cxx_runtime(facts, policy, findings);
  check_ifunc(facts, policy, findings);
}

}  // namespace gpuprof::elfgate

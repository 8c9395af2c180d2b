// SPDX-License-Identifier: Apache-2.0
//
// The table of a policy's keys.
#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <utility>

#include "tools/elfgate/policy.h"

namespace gpuprof::elfgate {
namespace {

using Words = std::vector<std::string>;
using Setter = std::function<Status(Policy&, const Words&)>;

struct Key {
  KeyHelp help;
  size_t min_words;
  size_t max_words;
  Setter set;
};

constexpr size_t kMany = 4096;

constexpr std::array<std::string_view, 30> kChecks = {"machine",         "kind",
                                                      "os-abi",          "interpreter",
                                                      "soname",          "versions",
                                                      "needed",          "rpath",
                                                      "runpath",         "exports",
                                                      "imports",         "unversioned-imports",
                                                      "cxx-runtime",     "ifunc",
                                                      "textrel",         "exec-stack",
                                                      "relro",           "static-tls",
                                                      "tls-descriptors", "packed-relocations",
                                                      "nodelete",        "hash",
                                                      "load-align",      "build-id",
                                                      "isa-level",       "cet",
                                                      "bti-pac",         "usdt",
                                                      "usdt-semaphores", "usdt-duplicates"};

Status set_rule(Rule& rule, const std::string& word) {
  if (word == "any") {
    rule = Rule::kAny;
  } else if (word == "require") {
    rule = Rule::kRequire;
  } else if (word == "forbid") {
    rule = Rule::kForbid;
  } else {
    return fail("'" + word + "' is none of any, require, forbid");
  }
  return {};
}

Key rule_key(std::string_view key, Rule Policy::*member, std::string_view text) {
  return {{key, "any|require|forbid", text}, 1, 1, [member](Policy& policy, const Words& words) {
            return set_rule(policy.*member, words[0]);
          }};
}

// A thing whose presence nobody needs to demand.
Key forbid_key(std::string_view key, Rule Policy::*member, std::string_view text) {
  Key made = rule_key(key, member, text);
  made.help.arguments = "any|forbid";
  made.set = [member](Policy& policy, const Words& words) {
    if (words[0] == "require") return Status(fail("'require' is none of any, forbid"));
    return set_rule(policy.*member, words[0]);
  };
  return made;
}

Key globs_key(std::string_view key, Words Policy::*member, std::string_view text) {
  return {{key, "GLOB...", text}, 1, kMany, [member](Policy& policy, const Words& words) {
            (policy.*member).insert((policy.*member).end(), words.begin(), words.end());
            return Status();
          }};
}

// An allow-list; "none" begins one that has nothing yet.
Key list_key(std::string_view key, std::optional<Words> Policy::*member, std::string_view arguments,
             std::string_view text) {
  return {{key, arguments, text}, 1, kMany, [member](Policy& policy, const Words& words) {
            auto& list = policy.*member;
            if (!list) list.emplace();
            if (words != Words{"none"}) list->insert(list->end(), words.begin(), words.end());
            return Status();
          }};
}

// One of `choices` (separated by |), where "any" switches the check off; no choices: any word.
Key word_key(std::string_view key, std::optional<std::string> Policy::*member,
             std::string_view choices, std::string_view text) {
  const bool is_free = choices.find("GLOB") != std::string_view::npos;
  const Words known = is_free ? Words{} : [choices] {
    Words list;
    for (size_t at = 0; at <= choices.size();) {
      const size_t end = std::min(choices.find('|', at), choices.size());
      list.emplace_back(choices.substr(at, end - at));
      at = end + 1;
    }
    return list;
  }();
  return {{key, choices, text}, 1, 1, [member, known, choices](Policy& policy, const Words& words) {
            if (!known.empty() && std::find(known.begin(), known.end(), words[0]) == known.end()) {
              return Status(fail("'" + words[0] + "' is none of " + std::string(choices)));
            }
            (policy.*member) = words[0];
            if (words[0] == "any") (policy.*member).reset();
            return Status();
          }};
}

template <class Number>
Key number_key(std::string_view key, Number Policy::*member, std::string_view text) {
  return {{key, "N", text}, 1, 1, [member](Policy& policy, const Words& words) {
            const std::string& word = words[0];
            const char* end = word.data() + word.size();
            const auto [stop, error] = std::from_chars(word.data(), end, policy.*member);
            if (error != std::errc() || stop != end) {
              return Status(fail("'" + word + "' is no number"));
            }
            return Status();
          }};
}

Status set_max_version(Policy& policy, const Words& words) {
  const auto number = parse_version_number(words[1]);
  if (!number) return fail("'" + words[1] + "' is no version such as 2.17");
  auto& limits = policy.max_versions;
  std::erase_if(limits, [&](const VersionLimit& limit) { return limit.name_space == words[0]; });
  limits.push_back({words[0], *number});
  return {};
}

Status check_known(const std::string& name) {
  const auto names = check_names();
  if (std::find(names.begin(), names.end(), name) != names.end()) return {};
  return fail("no check is called '" + name + "'");
}

std::vector<Key> object_keys() {
  return {
      word_key("machine", &Policy::machine, "any|x86-64|aarch64", "the architecture"),
      word_key("kind", &Policy::kind, "any|library|executable",
               "what it is; a library must let itself be dlopened"),
      word_key("os-abi", &Policy::os_abi, "any|none|gnu", "EI_OSABI; gnu allows none too"),
      word_key("interpreter", &Policy::interpreter, "any|none|GLOB", "PT_INTERP"),
      word_key("soname", &Policy::soname, "any|none|GLOB", "DT_SONAME"),
      {{"max-version", "NAMESPACE X.Y",
        "the highest version it may need; no marker of that namespace"},
       2,
       2,
       set_max_version},
      globs_key("allow-version", &Policy::allowed_versions,
                "needed versions and markers to accept"),
      globs_key("deny-version", &Policy::denied_versions, "needed versions and markers to refuse"),
      forbid_key("unlisted-versions", &Policy::unlisted_versions,
                 "needed versions that no max-version and no allow-version speaks of"),
      list_key("allow-needed", &Policy::allowed_needed, "none|GLOB...",
               "all that DT_NEEDED, DT_FILTER and DT_AUXILIARY may name"),
      globs_key("deny-needed", &Policy::denied_needed, "what they must not name"),
      forbid_key("rpath", &Policy::rpath, "DT_RPATH, which goes before LD_LIBRARY_PATH"),
      rule_key("runpath", &Policy::runpath, "DT_RUNPATH"),
      forbid_key("runpath-relative", &Policy::runpath_relative,
                 "entries that are empty or relative to the current directory"),
      word_key("runpath-first", &Policy::runpath_first, "any|GLOB", "the first entry"),
      {{"runpath-order", "GLOB GLOB...", "each has an entry, and these come in this order"},
       2,
       kMany,
       [](Policy& policy, const Words& words) {
         policy.runpath_orders.push_back(words);
         return Status();
       }},
      globs_key("deny-runpath", &Policy::denied_runpath, "entries to refuse (DT_RPATH's too)"),
  };
}

std::vector<Key> symbol_keys() {
  return {
      list_key("exports", &Policy::exports, "none|NAME...",
               "the dynamic symbols that it defines, all and no other; NAME or NAME@@VERSION"),
      globs_key("deny-export", &Policy::denied_exports, "dynamic symbols that it must not define"),
      word_key("export-kind", &Policy::export_kind, "any|function",
               "what each of them is; function: and not a weak one"),
      forbid_key("unique-exports", &Policy::unique_exports, "STB_GNU_UNIQUE symbols"),
      globs_key("deny-import", &Policy::denied_imports,
                "dynamic symbols that it must not refer to"),
      forbid_key("unversioned-imports", &Policy::unversioned_imports,
                 "references without a version, weak ones aside"),
      forbid_key("cxx-runtime", &Policy::cxx_runtime,
                 "std::, __cxa_, operator new and delete as dynamic symbols"),
      forbid_key("ifunc", &Policy::ifunc, "IFUNC symbols and relocations"),
      forbid_key("textrel", &Policy::textrel, "relocations in read-only segments"),
      forbid_key("exec-stack", &Policy::executable_stack, "an executable stack, or none declared"),
      word_key("relro", &Policy::relro, "any|partial|full",
               "read-only relocations; full: with BIND_NOW"),
      forbid_key("static-tls", &Policy::static_tls,
                 "DF_STATIC_TLS and initial-exec relocations in a library"),
      forbid_key("tls-descriptors", &Policy::tls_descriptors, "TLSDESC relocations"),
      forbid_key("packed-relocations", &Policy::packed_relocations, "DT_RELR and Android's"),
      rule_key("nodelete", &Policy::nodelete, "DF_1_NODELETE"),
      rule_key("gnu-hash", &Policy::gnu_hash, "DT_GNU_HASH"),
      rule_key("sysv-hash", &Policy::sysv_hash, "DT_HASH"),
      number_key("min-load-align", &Policy::min_load_align_bytes,
                 "least alignment of a PT_LOAD, bytes"),
      rule_key("build-id", &Policy::build_id, "NT_GNU_BUILD_ID"),
      number_key("max-isa-level", &Policy::max_isa_level,
                 "x86-64-vN that the file may say it needs (x86 ISA note)"),
      rule_key("ibt", &Policy::ibt, "x86's IBT mark (CET)"),
      rule_key("shstk", &Policy::shstk, "x86's shadow stack mark (CET)"),
      rule_key("bti", &Policy::bti, "aarch64's BTI mark"),
      rule_key("pac", &Policy::pac, "aarch64's PAC mark"),
  };
}

std::vector<Key> other_keys() {
  return {
      word_key("usdt-provider", &Policy::usdt_provider, "any|GLOB",
               "whose probes are exactly those of usdt-probe"),
      {{"usdt-probe", "PROVIDER NAME ARGUMENTS...", "one probe, as readelf -n writes it"},
       2,
       kMany,
       [](Policy& policy, const Words& words) {
         ProbeRule probe{words[0], words[1], ""};
         for (size_t i = 2; i < words.size(); ++i) {
           probe.arguments += (i == 2 ? "" : " ") + words[i];
         }
         policy.probes.push_back(std::move(probe));
         return Status();
       }},
      word_key("usdt-semaphores", &Policy::usdt_semaphores, "any|GLOB",
               "the section in which each probe has a semaphore of its own"),
      forbid_key("usdt-duplicates", &Policy::usdt_duplicates, "two sites of one probe"),
      {{"off", "CHECK...", "switches checks off"},
       1,
       kMany,
       [](Policy& policy, const Words& words) {
         for (const std::string& word : words) {
           if (Status known = check_known(word); !known) return known;
           policy.off.push_back(word);
         }
         return Status();
       }},
      {{"exempt", "CHECK GLOB", "no such check for files of that SONAME or name"},
       2,
       2,
       [](Policy& policy, const Words& words) {
         policy.exemptions.push_back({words[0], words[1]});
         return check_known(words[0]);
       }},
  };
}

const std::vector<Key>& keys() {
  static const std::vector<Key> table = [] {
    std::vector<Key> all = object_keys();
    for (const auto& part : {symbol_keys(), other_keys()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  return table;
}

Words words_of(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  Words words;
  for (size_t at = text.find_first_not_of(kBlanks); at != std::string_view::npos;) {
    const size_t end = std::min(text.find_first_of(kBlanks, at), text.size());
    words.emplace_back(text.substr(at, end - at));
    at = text.find_first_not_of(kBlanks, end);
  }
  return words;
}

}  // namespace

std::span<const std::string_view> check_names() { return kChecks; }

std::vector<KeyHelp> policy_keys() {
  std::vector<KeyHelp> help;
  for (const Key& key : keys()) help.push_back(key.help);
  help.push_back({"include", "FILE", "what that policy says; its path is relative to this one's"});
  return help;
}

Status set_policy_key(Policy& policy, std::string_view key, std::string_view arguments,
                      const std::string& directory) {
  const Words words = words_of(arguments);
  if (key == "include") {
    if (words.size() != 1) return fail("include takes one FILE");
    return add_policy_file(policy, words[0][0] == '/' ? words[0] : directory + "/" + words[0]);
  }
  for (const Key& known : keys()) {
    if (known.help.key != key) continue;
    if (words.size() < known.min_words || words.size() > known.max_words) {
      return fail(std::string(key) + " takes " + std::string(known.help.arguments));
    }
    if (Status set = known.set(policy, words); !set)
      return fail(std::string(key) + ": " + set.error());
    return {};
  }
  return fail("no key is called '" + std::string(key) + "'");
}

}  // namespace gpuprof::elfgate

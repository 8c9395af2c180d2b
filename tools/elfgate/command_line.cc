// SPDX-License-Identifier: Apache-2.0
#include "tools/elfgate/command_line.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/elfgate/checks.h"
#include "tools/elfgate/json.h"
#include "tools/elfgate/policy.h"
#include "tools/elfgate/read_facts.h"
#include "tools/elfgate/report.h"
#include "tools/elfgate/version.h"

namespace gpuprof::elfgate {
namespace {

constexpr int kPass = 0;
constexpr int kViolation = 1;
constexpr int kUnreadable = 2;

constexpr const char* kUsage =
    R"(usage: elfgate check FILE... [--policy FILE]... [--KEY 'ARGUMENTS']... [--json]
       elfgate facts FILE...
       elfgate --help | --version
  check   Tells what of each file breaks the policy, a line each. Without --policy and --KEY the policy
          is the permissive one that is built in.
  facts   Prints what the checks ask about, one JSON object a line.
  --json  One JSON object a line and file: "violations", or "error".
exit: 0 every file passes, 1 a violation, 2 usage or a file that cannot be read
)";

struct Arguments {
  bool is_check = false;
  bool wants_help = false;
  bool json = false;
  bool has_policy = false;
  Policy policy;
  std::vector<std::string> files;
};

// "--KEY ARGUMENTS" or "--KEY=ARGUMENTS".
Status set_option(std::string_view key, const std::string& value, Arguments& parsed) {
  parsed.has_policy = true;
  if (key == "policy") return add_policy_file(parsed.policy, value);
  return set_policy_key(parsed.policy, key, value, ".");
}

// `arguments` after "elfgate check" or "elfgate facts".
Status parse(const std::vector<std::string>& arguments, Arguments& parsed) {
  bool options_end = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    const bool is_help = word == "--help" || word == "-h";
    if (options_end || (!word.starts_with("--") && !is_help)) {
      parsed.files.push_back(word);
    } else if (word == "--") {
      options_end = true;
    } else if (is_help) {
      parsed.wants_help = true;
      return {};
    } else if (word == "--json") {
      parsed.json = true;
    } else if (!parsed.is_check) {
      return fail("facts takes no " + word);
    } else {
      const size_t equals = word.find('=');
      const bool is_whole = equals == std::string::npos;
      if (is_whole && ++i == arguments.size()) return fail(word + " takes an argument");
      Status set = set_option(word.substr(2, is_whole ? equals : equals - 2),
                              is_whole ? arguments[i] : word.substr(equals + 1), parsed);
      if (!set) return set;
    }
  }
  if (parsed.files.empty()) return fail("no FILE is named");
  if (!parsed.has_policy) {
    return add_policy_text(parsed.policy, default_policy_text(), "the built-in policy", ".");
  }
  return {};
}

void print(std::FILE* stream, const std::string& line) {
  std::fprintf(stream, "%s\n", line.c_str());
}

int tell_unreadable(const Arguments& arguments, const std::string& file, const std::string& error) {
  if (arguments.json) print(stdout, error_json(file, error));
  print(stderr, "elfgate: " + printable(file) + ": " + printable(error));
  return kUnreadable;
}

int handle(const Arguments& arguments, const std::string& file) {
  const auto image = ElfImage::open(file);
  if (!image) return tell_unreadable(arguments, file, image.error());
  const auto facts = read_facts(*image);
  if (!facts) return tell_unreadable(arguments, file, facts.error());
  if (!arguments.is_check) {
    print(stdout, facts_json(file, *facts));
    return kPass;
  }
  const size_t slash = file.rfind('/');
  const auto violations = check_file(*facts, arguments.policy,
                                     slash == std::string::npos ? file : file.substr(slash + 1));
  if (arguments.json) {
    print(stdout, check_json(file, violations));
  } else {
    for (const Violation& violation : violations) print(stdout, violation_line(file, violation));
  }
  return violations.empty() ? kPass : kViolation;
}

void print_help() {
  std::printf("%s\nKEY and ARGUMENTS, on the command line or as lines of a policy FILE:\n", kUsage);
  for (const KeyHelp& key : policy_keys()) {
    const std::string head = std::string(key.key) + " " + std::string(key.arguments);
    std::printf("  %-38s %s\n", head.c_str(), std::string(key.text).c_str());
  }
  std::printf("\nCHECK is one of:\n ");
  size_t column = 1;
  for (const std::string_view name : check_names()) {
    if (column + name.size() > 98) {
      std::printf("\n ");
      column = 1;
    }
    column += name.size() + 1;
    std::printf(" %s", std::string(name).c_str());
  }
  std::printf("\n");
}

}  // namespace

int main_command(int argc, char** argv) {
  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  if (words.size() == 1 && (words[0] == "--help" || words[0] == "-h")) {
    print_help();
    return kPass;
  }
  if (words.size() == 1 && words[0] == "--version") {
    print(stdout, "elfgate " GPUPROF_ELFGATE_VERSION);
    return kPass;
  }
  if (words.empty() || (words[0] != "check" && words[0] != "facts")) {
    std::fputs(kUsage, stderr);
    return kUnreadable;
  }
  Arguments arguments;
  arguments.is_check = words[0] == "check";
  words.erase(words.begin());
  if (Status parsed = parse(words, arguments); !parsed) {
    print(stderr, "elfgate: " + printable(parsed.error()) + " (elfgate --help lists all options)");
    return kUnreadable;
  }
  if (arguments.wants_help) {
    print_help();
    return kPass;
  }
  int worst = kPass;
  for (const std::string& file : arguments.files) worst = std::max(worst, handle(arguments, file));
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    print(stderr, "elfgate: cannot write the result");
    return kUnreadable;
  }
  return worst;
}

}  // namespace gpuprof::elfgate

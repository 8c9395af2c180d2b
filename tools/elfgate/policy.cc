// SPDX-License-Identifier: Apache-2.0
#include "tools/elfgate/policy.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>

namespace gpuprof::elfgate {
namespace {

// A policy that includes itself would not end.
constexpr int kMaxIncludes = 16;

// False with errno set; a directory is no file.
bool read_whole(const std::string& path, std::string& text) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "re"),
                                                             std::fclose);
  if (!file) return false;
  std::array<char, 4096> block;
  size_t count = 0;
  while ((count = std::fread(block.data(), 1, block.size(), file.get())) > 0) {
    text.append(block.data(), count);
  }
  return std::ferror(file.get()) == 0;
}

}  // namespace

bool matches(const std::string& glob, std::string_view text) {
  return fnmatch(glob.c_str(), std::string(text).c_str(), FNM_NOESCAPE) == 0;
}

bool matches_any(const std::vector<std::string>& globs, std::string_view text) {
  return std::any_of(globs.begin(), globs.end(),
                     [text](const std::string& glob) { return matches(glob, text); });
}

std::optional<VersionNumber> parse_version_number(std::string_view text) {
  VersionNumber parts;
  while (true) {
    uint64_t part = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), part);
    if (error != std::errc()) return std::nullopt;
    parts.push_back(part);
    text.remove_prefix(static_cast<size_t>(stop - text.data()));
    if (text.empty()) return parts;
    if (text[0] != '.') return std::nullopt;
    text.remove_prefix(1);
  }
}

Status add_policy_text(Policy& policy, std::string_view text, const std::string& name,
                       const std::string& directory) {
  int number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    const size_t start = line.find_first_not_of(" \t\r");
    if (start == std::string_view::npos || line[start] == '#') continue;
    line.remove_prefix(start);
    const size_t key_end = std::min(line.find_first_of(" \t\r"), line.size());
    const Status set =
        set_policy_key(policy, line.substr(0, key_end), line.substr(key_end), directory);
    if (!set) return fail(name + ":" + std::to_string(number) + ": " + set.error());
  }
  return {};
}

Status add_policy_file(Policy& policy, const std::string& path) {
  if (policy.include_depth >= kMaxIncludes) {
    return fail(path + ": policies include one another too deep");
  }
  std::string text;
  if (!read_whole(path, text)) return fail(path + ": " + std::strerror(errno));
  const size_t slash = path.rfind('/');
  ++policy.include_depth;
  Status added =
      add_policy_text(policy, text, path, slash == std::string::npos ? "." : path.substr(0, slash));
  --policy.include_depth;
  return added;
}

}  // namespace gpuprof::elfgate

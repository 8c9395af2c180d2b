// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/users.h"

#include <grp.h>
#include <limits.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "daemon/cli/process_answer.h"

namespace gpuprof::cli {
namespace {

constexpr size_t kMostBytes = size_t{1} << 20;  // 65,536 groups, NGROUPS_MAX, have 720 KB

User from_entry(const passwd& entry) {
  return {entry.pw_name, entry.pw_uid, entry.pw_gid, entry.pw_dir, false};
}

#ifdef GPUPROF_STATIC_BINARY
struct CloseFile {
  void operator()(FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<FILE, CloseFile>;

const passwd* find_in_file(const std::function<bool(const passwd&)>& matches) {
  const File file(std::fopen("/etc/passwd", "re"));
  while (const passwd* entry = file ? ::fgetpwent(file.get()) : nullptr) {
    if (matches(*entry)) return entry;
  }
  return nullptr;
}

const passwd* known_user(const std::string& name) {
  return find_in_file([&](const passwd& entry) { return name == entry.pw_name; });
}

const passwd* known_user(uid_t uid) {
  return find_in_file([&](const passwd& entry) { return uid == entry.pw_uid; });
}

std::vector<gid_t> known_groups(const std::string& name, gid_t gid) {
  std::vector<gid_t> out = {gid};
  const File file(std::fopen("/etc/group", "re"));
  while (const group* entry = file ? ::fgetgrent(file.get()) : nullptr) {
    for (char** member = entry->gr_mem; *member != nullptr; ++member) {
      if (name == *member && entry->gr_gid != gid) out.push_back(entry->gr_gid);
    }
  }
  return out;
}
#else
const passwd* known_user(const std::string& name) { return ::getpwnam(name.c_str()); }
const passwd* known_user(uid_t uid) { return ::getpwuid(uid); }

std::vector<gid_t> known_groups(const std::string& name, gid_t gid) {
  int count = 64;
  std::vector<gid_t> out(static_cast<size_t>(count));
  if (::getgrouplist(name.c_str(), gid, out.data(), &count) < 0) {
    out.resize(static_cast<size_t>(count));
    ::getgrouplist(name.c_str(), gid, out.data(), &count);
  }
  out.resize(static_cast<size_t>(count));
  return out;
}
#endif

std::optional<uint32_t> number(std::string_view text) {
  uint32_t out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  // -1 is nobody's: setresuid and its like leave the old one then.
  if (error != std::errc() || end != text.data() + text.size() || out == UINT32_MAX) return {};
  return out;
}

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// What getent and id cannot take for an option or for something else.
bool is_name(std::string_view text) {
  const auto is_odd = [](unsigned char c) { return c <= ' ' || c == ':' || c == '/' || c == 0x7f; };
  return !text.empty() && text[0] != '-' && std::none_of(text.begin(), text.end(), is_odd);
}

// One line of passwd(5).
std::optional<User> parse_entry(std::string_view line) {
  if (!line.ends_with('\n') || line.find('\n') + 1 != line.size()) return {};
  line.remove_suffix(1);
  std::array<std::string_view, 7> fields;
  for (size_t i = 0; i < fields.size(); ++i) {
    const size_t end = std::min(line.find(':'), line.size());
    if ((end == line.size()) != (i + 1 == fields.size())) return {};
    fields[i] = line.substr(0, end);
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  const auto uid = number(fields[2]), gid = number(fields[3]);
  if (!is_name(fields[0]) || !uid || !gid) return {};
  const bool has_home = fields[5].starts_with('/');
  return User{std::string(fields[0]), *uid, *gid, has_home ? std::string(fields[5]) : "/", true};
}

}  // namespace

Result<std::string> Users::ask(const std::string& program,
                               std::vector<std::string> arguments) const {
  const auto folder = std::find_if(folders_.begin(), folders_.end(), [&](const std::string& place) {
    return ::access((place + "/" + program).c_str(), X_OK) == 0;
  });
  if (folder == folders_.end()) return fail(Code::kUnavailable, "there is no " + program);
  arguments.insert(arguments.begin(), *folder + "/" + program);
  auto answer = answer_of(arguments, kMostBytes, patience_);
  if (answer) return answer;
  std::string asked;
  for (const std::string& word : arguments) asked += word + " ";
  return fail(answer.error().code, asked + answer.error().message);
}

Result<User> Users::ask_for(const std::string& key) const {
  auto line = ask("getent", {"passwd", key});
  if (!line) return tl::unexpected<Error>(line.error());
  auto user = parse_entry(*line);
  if (!user) return fail(Code::kUnavailable, "getent passwd " + key + " answered no user's line");
  return *user;
}

Result<User> Users::find(const std::string& name) const {
  if (const passwd* entry = known_user(name)) return from_entry(*entry);
  if (!is_name(name)) return fail(Code::kNotFound, "that is no name");
  auto user = ask_for(name);
  // Of a number getent tells the user who has it. Of names a directory may tell another spelling.
  if (user && is_number(name) && user->name != name)
    return fail(Code::kNotFound, "there is a user with that number, " + user->name);
  return user;
}

Result<User> Users::find(uid_t uid) const {
  if (const passwd* entry = known_user(uid)) return from_entry(*entry);
  auto user = ask_for(std::to_string(uid));
  if (user && user->uid != uid)
    return fail(Code::kUnavailable, "getent answered of another user, " + user->name);
  return user;
}

Result<std::vector<gid_t>> Users::groups_of(const User& user, gid_t gid) const {
  if (!user.was_asked_for) return known_groups(user.name, gid);
  auto line = ask("id", {"-G", user.name});
  if (!line) return tl::unexpected<Error>(line.error());
  std::vector<gid_t> out = {gid};
  std::string_view rest = *line;
  while (!rest.empty() && out.size() < NGROUPS_MAX) {
    const std::string_view word = rest.substr(0, rest.find_first_of(" \n"));
    const auto group = number(word);
    if (!group) return fail(Code::kUnavailable, "id -G " + user.name + " answered no numbers");
    if (*group != gid) out.push_back(*group);
    rest.remove_prefix(std::min(word.size() + 1, rest.size()));
  }
  return out;
}

}  // namespace gpuprof::cli

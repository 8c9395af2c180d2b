// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/invoker.h"

#include <grp.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

namespace gpuprof::cli {
namespace {

std::optional<uid_t> id_from_environment(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return {};
  const std::string_view view(text);
  uid_t out = 0;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), out);
  if (error != std::errc() || end != view.data() + view.size()) return {};
  return out;
}

std::string text_from_environment(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

Invoker from_user(const User& user, gid_t gid, const Users& users) {
  Invoker out;
  out.uid = user.uid;
  out.gid = gid;
  out.name = user.name;
  out.home = user.home;
  out.switches = out.uid != ::geteuid();
  if (auto groups = users.groups_of(user, gid)) {
    out.groups = std::move(*groups);
  } else {
    out.groups = {gid};
    out.note = "the groups of " + user.name + " were not found (" + groups.error().message +
               "): the command has group " + std::to_string(gid) + " alone";
  }
  return out;
}

// The numbers hold without an entry too: a user of a container only, or of a directory that does
// not answer.
Invoker from_numbers(uid_t uid, gid_t gid, const std::string& why) {
  Invoker out;
  out.uid = uid;
  out.gid = gid;
  out.groups = {gid};
  out.name = text_from_environment("SUDO_USER");
  if (out.name.empty()) out.name = std::to_string(uid);
  out.home = text_from_environment("SUDO_HOME");  // of sudo 1.9.15 and newer
  if (!out.home.starts_with('/')) out.home = "/";
  out.switches = true;
  out.note = "who user " + std::to_string(uid) + " is was not found (" + why +
             "): the command has HOME=" + out.home + ", USER=" + out.name + " and group " +
             std::to_string(gid) + " alone";
  return out;
}

Invoker from_sudo(uid_t uid, const Users& users) {
  const auto gid = id_from_environment("SUDO_GID");
  const auto user = users.find(uid);
  if (!user) return from_numbers(uid, gid.value_or(uid), user.error().message);
  return from_user(*user, gid.value_or(user->gid), users);
}

}  // namespace

// Changing from uid 0 to another clears all capabilities but the inheritable and ambient ones,
// which are dropped explicitly.
int become(const Invoker& invoker) {
  if (!invoker.switches) return 0;
  if (::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0 && errno != EINVAL)
    return errno;
  if (::setgroups(invoker.groups.size(), invoker.groups.data()) != 0) return errno;
  if (::setresgid(invoker.gid, invoker.gid, invoker.gid) != 0) return errno;
  if (::setresuid(invoker.uid, invoker.uid, invoker.uid) != 0) return errno;
  // Never run somebody's command with more than somebody has.
  if (invoker.uid != 0 && ::setuid(0) == 0) return EPERM;
  return 0;
}

Result<Invoker> Invoker::resolve(const std::string& user, const Users& users) {
  const uid_t self = ::geteuid();
  if (!user.empty()) {
    const auto found = users.find(user);
    if (!found) {
      return fail(Code::kInvalidArgument,
                  "--user: no such user: " + user + " (" + found.error().message + ")");
    }
    Invoker out = from_user(*found, found->gid, users);
    if (out.switches && self != 0)
      return fail(Code::kPermission, "--user: running a command as " + user + " needs root");
    return out;
  }
  const auto sudo_uid = id_from_environment("SUDO_UID");
  if (self == 0 && sudo_uid && *sudo_uid != 0) return from_sudo(*sudo_uid, users);
  Invoker out;
  out.uid = self;
  out.gid = ::getegid();
  return out;
}

}  // namespace gpuprof::cli

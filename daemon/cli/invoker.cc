// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/invoker.h"

#include <grp.h>
#include <pwd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>

namespace gpuprof::cli {
namespace {

#ifdef GPUPROF_STATIC_BINARY
struct CloseFile {
  void operator()(FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<FILE, CloseFile>;
#endif

// A static glibc cannot load NSS modules of another glibc, so a static binary reads the files only.
#ifdef GPUPROF_STATIC_BINARY
const passwd* find_in_file(const std::function<bool(const passwd&)>& matches) {
  const File file(std::fopen("/etc/passwd", "re"));
  while (const passwd* entry = file ? ::fgetpwent(file.get()) : nullptr) {
    if (matches(*entry)) return entry;
  }
  return nullptr;
}

const passwd* find_user(const std::string& name) {
  return find_in_file([&](const passwd& entry) { return name == entry.pw_name; });
}

const passwd* find_user(uid_t uid) {
  return find_in_file([&](const passwd& entry) { return uid == entry.pw_uid; });
}
#else
const passwd* find_user(const std::string& name) { return ::getpwnam(name.c_str()); }
const passwd* find_user(uid_t uid) { return ::getpwuid(uid); }
#endif

std::vector<gid_t> groups_of(const std::string& name, gid_t gid) {
  std::vector<gid_t> out;
#ifdef GPUPROF_STATIC_BINARY
  out.push_back(gid);
  const File file(std::fopen("/etc/group", "re"));
  while (const group* entry = file ? ::fgetgrent(file.get()) : nullptr) {
    for (char** member = entry->gr_mem; *member != nullptr; ++member) {
      if (name == *member && entry->gr_gid != gid) out.push_back(entry->gr_gid);
    }
  }
#else
  int count = 64;
  out.resize(static_cast<size_t>(count));
  if (::getgrouplist(name.c_str(), gid, out.data(), &count) < 0) {
    out.resize(static_cast<size_t>(count));
    ::getgrouplist(name.c_str(), gid, out.data(), &count);
  }
  out.resize(static_cast<size_t>(count));
#endif
  return out;
}

std::optional<uid_t> id_from_environment(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return {};
  const std::string_view view(text);
  uid_t out = 0;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), out);
  if (error != std::errc() || end != view.data() + view.size()) return {};
  return out;
}

Invoker from_entry(const passwd& entry) {
  Invoker out;
  out.uid = entry.pw_uid;
  out.gid = entry.pw_gid;
  out.name = entry.pw_name;
  out.home = entry.pw_dir;
  out.groups = groups_of(out.name, out.gid);
  out.switches = out.uid != ::geteuid();
  return out;
}

Result<Invoker> from_sudo(uid_t uid) {
  // Without a passwd entry (a user of a container only) the numbers still hold.
  Invoker out;
  if (const passwd* entry = find_user(uid)) {
    out = from_entry(*entry);
  } else {
    out.uid = uid;
    out.name = std::to_string(uid);
    out.home.assign(1, '/');
    out.gid = uid;
    out.switches = true;
  }
  if (const auto gid = id_from_environment("SUDO_GID")) {
    out.gid = *gid;
    out.groups = groups_of(out.name, out.gid);
  }
  return out;
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

Result<Invoker> Invoker::resolve(const std::string& user) {
  const uid_t self = ::geteuid();
  if (!user.empty()) {
    const passwd* entry = find_user(user);
    if (entry == nullptr) return fail(Code::kInvalidArgument, "--user: no such user: " + user);
    Invoker out = from_entry(*entry);
    if (out.switches && self != 0)
      return fail(Code::kPermission, "--user: running a command as " + user + " needs root");
    return out;
  }
  const auto sudo_uid = id_from_environment("SUDO_UID");
  if (self == 0 && sudo_uid && *sudo_uid != 0) return from_sudo(*sudo_uid);
  Invoker out;
  out.uid = self;
  out.gid = ::getegid();
  return out;
}

}  // namespace gpuprof::cli

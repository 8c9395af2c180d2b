// SPDX-License-Identifier: Apache-2.0
#include "daemon/doctor/root_walk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <deque>
#include <optional>
#include <string_view>

#include "daemon/base/root_file.h"
#include "daemon/target/process.h"

namespace gpuprof::doctor {
namespace {

constexpr int kMostLinks = 40;  // MAXSYMLINKS of the kernel
constexpr unsigned kDacOverride = 1, kDacReadSearch = 2;

// The numbers behind `key` in its line of /proc/PID/status.
std::vector<uint64_t> numbers_of(std::string_view text, std::string_view key, int base) {
  std::vector<uint64_t> out;
  const size_t at = text.find(key);
  if (at == std::string_view::npos) return out;
  std::string_view line = text.substr(at + key.size());
  line = line.substr(0, line.find('\n'));
  for (;;) {
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    uint64_t number = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), number, base);
    if (error != std::errc()) return out;
    out.push_back(number);
    line.remove_prefix(static_cast<size_t>(end - line.data()));
  }
}

bool has_list(const UniqueFd& file) {
  const std::string self = "/proc/self/fd/" + std::to_string(file.get());
  return ::getxattr(self.c_str(), "system.posix_acl_access", nullptr, 0) > 0;
}

// `bits` as in the others' part of a mode: 4 read, 1 search.
bool allowed(const UniqueFd& file, const FileUser& user, unsigned bits) {
  struct stat info = {};
  if (user.overrides || ::fstat(file.get(), &info) != 0) return true;
  unsigned granted = info.st_mode & 7u;
  if (info.st_uid == user.uid) {
    granted = info.st_mode >> 6 & 7u;
  } else if (info.st_gid == user.gid ||
             std::ranges::find(user.groups, info.st_gid) != user.groups.end()) {
    granted = info.st_mode >> 3 & 7u;
  }
  return (granted & bits) == bits || has_list(file);
}

std::deque<std::string> parts_of(std::string_view path) {
  std::deque<std::string> out;
  while (!path.empty()) {
    const std::string_view part = path.substr(0, path.find('/'));
    if (!part.empty() && part != ".") out.emplace_back(part);
    path.remove_prefix(std::min(path.size(), part.size() + 1));
  }
  return out;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& part : parts) out += "/" + part;
  return out.empty() ? "/" : out;
}

std::optional<std::string> link_target(const UniqueFd& link) {
  char text[PATH_MAX];
  const ssize_t length = ::readlinkat(link.get(), "", text, sizeof text);
  if (length < 0) return {};
  return std::string(text, static_cast<size_t>(length));
}

// One walk's state: where it is, and what is still to go.
class Walker {
 public:
  Walker(const UniqueFd& root, const std::string& path, const FileUser& user)
      : root_(root), user_(user), todo_(parts_of(path)) {}

  RootWalk go() {
    here_ = open_in_root(root_, "/", O_PATH | O_DIRECTORY);
    if (!here_.valid()) return stopped(RootWalk::Stop::kUnseen, "/", errno);
    while (!todo_.empty()) {
      if (auto end = step()) return std::move(*end);
    }
    RootWalk out;
    out.file = std::move(here_);
    return out;
  }

 private:
  static RootWalk stopped(RootWalk::Stop why, std::string where, int error = 0) {
    RootWalk out;
    out.stop = why;
    out.where = std::move(where);
    out.error = error;
    return out;
  }

  std::optional<RootWalk> step() {
    struct stat info = {};
    if (::fstat(here_.get(), &info) != 0 || !S_ISDIR(info.st_mode))
      return stopped(RootWalk::Stop::kNotFolder, joined(done_));
    if (!allowed(here_, user_, 1)) return stopped(RootWalk::Stop::kNoSearch, joined(done_));
    const std::string name = std::move(todo_.front());
    todo_.pop_front();
    if (name == "..") {
      if (!done_.empty()) done_.pop_back();
      return enter(joined(done_));
    }
    done_.push_back(name);
    return enter(joined(done_));
  }

  std::optional<RootWalk> enter(const std::string& path) {
    UniqueFd next = open_in_root(root_, path, O_PATH | O_NOFOLLOW);
    const int error = errno;
    if (!next.valid()) return failed(path, error);
    struct stat info = {};
    if (::fstat(next.get(), &info) == 0 && S_ISLNK(info.st_mode)) return follow(next, path);
    here_ = std::move(next);
    return {};
  }

  RootWalk failed(const std::string& path, int error) {
    const bool missing = error == ENOENT || error == ENOTDIR;
    if (!missing) return stopped(RootWalk::Stop::kUnseen, path, error);
    if (link_.empty()) return stopped(RootWalk::Stop::kMissing, path);
    RootWalk out = stopped(RootWalk::Stop::kDangling, link_);
    out.target = link_target_;
    return out;
  }

  std::optional<RootWalk> follow(const UniqueFd& link, const std::string& path) {
    const auto target = link_target(link);
    if (!target || ++links_ > kMostLinks) return stopped(RootWalk::Stop::kLoop, path);
    link_ = path;
    link_target_ = *target;
    done_.pop_back();
    if (target->starts_with('/')) done_.clear();
    std::deque<std::string> more = parts_of(*target);
    todo_.insert(todo_.begin(), more.begin(), more.end());
    here_ = open_in_root(root_, joined(done_), O_PATH | O_DIRECTORY);
    if (!here_.valid()) return stopped(RootWalk::Stop::kUnseen, joined(done_), errno);
    return {};
  }

  const UniqueFd& root_;
  const FileUser& user_;
  UniqueFd here_;
  std::vector<std::string> done_;
  std::deque<std::string> todo_;
  std::string link_, link_target_;  // the last one that was followed
  int links_ = 0;
};

}  // namespace

FileUser parse_file_user(const std::string& status) {
  FileUser out;
  // Real, effective, saved, file system.
  if (const auto ids = numbers_of(status, "\nUid:", 10); ids.size() == 4)
    out.uid = static_cast<uid_t>(ids[3]);
  if (const auto ids = numbers_of(status, "\nGid:", 10); ids.size() == 4)
    out.gid = static_cast<gid_t>(ids[3]);
  for (const uint64_t group : numbers_of(status, "\nGroups:", 10))
    out.groups.push_back(static_cast<gid_t>(group));
  if (const auto caps = numbers_of(status, "\nCapEff:", 16); caps.size() == 1)
    out.overrides = (caps[0] >> kDacOverride & 1) != 0 || (caps[0] >> kDacReadSearch & 1) != 0;
  return out;
}

Result<FileUser> file_user(uint32_t pid) {
  auto text = target::read_proc_file("/proc/" + std::to_string(pid) + "/status", 65536);
  if (!text) return tl::unexpected<Error>(text.error());
  return parse_file_user(*text);
}

RootWalk walk(const UniqueFd& root, const std::string& path, const FileUser& user) {
  return Walker(root, path, user).go();
}

bool may_read(const UniqueFd& file, const FileUser& user) { return allowed(file, user, 4); }

}  // namespace gpuprof::doctor

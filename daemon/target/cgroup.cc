// SPDX-License-Identifier: Apache-2.0
#include "daemon/target/cgroup.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <vector>

#include "daemon/base/unique_fd.h"
#include "daemon/target/process.h"
#include "daemon/target/text.h"

namespace gpuprof::target {
namespace {

constexpr const char* kRemedy =
    "give a directory of the cgroup file system, as /sys/fs/cgroup/system.slice";

std::string_view take_word(std::string_view& rest) {
  const std::string_view word = rest.substr(0, rest.find(' '));
  rest.remove_prefix(std::min(rest.size(), word.size() + 1));
  return word;
}

// proc_pid_mountinfo(5): blanks, tabs, newlines and backslashes are octal.
std::string unescape(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '\\' && at + 3 < text.size()) {
      out += static_cast<char>((text[at + 1] - '0') * 64 + (text[at + 2] - '0') * 8 +
                               (text[at + 3] - '0'));
      at += 3;
    } else {
      out += text[at];
    }
  }
  return out;
}

struct Mount {
  std::string root, place, type, options;
};

// 36 35 98:0 /root /place rw,noatime shared:1 - cgroup cgroup rw,memory
Mount parse_mount(std::string_view line) {
  Mount out;
  for (int field = 0; field < 3; ++field) take_word(line);
  out.root = unescape(take_word(line));
  out.place = unescape(take_word(line));
  const size_t dash = line.find(" - ");
  if (dash == std::string_view::npos) return {};
  line.remove_prefix(dash + 3);
  out.type = take_word(line);
  take_word(line);
  out.options = take_word(line);
  return out;
}

// What follows `above` in `path`, if that is a directory above it or the same: "/b" of "/a/b".
std::optional<std::string_view> below(std::string_view path, std::string_view above) {
  if (above == "/") above = "";
  if (!path.starts_with(above)) return {};
  path.remove_prefix(above.size());
  return path.empty() || path[0] == '/' ? std::optional(path) : std::nullopt;
}

bool is_number(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

bool in_list(std::string_view list, std::string_view name) {
  return list.find("," + std::string(name) + ",") != std::string_view::npos;
}

}  // namespace

std::optional<CgroupLine> take_cgroup_line(std::string_view& text) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) continue;
    const CgroupLine out{line.substr(first + 1, second - first - 1), line.substr(second + 1)};
    if (is_number(line.substr(0, first)) && out.path.starts_with('/')) return out;
  }
  return {};
}

std::optional<std::string> cgroup_text(uint32_t pid) {
  auto text = read_proc_file("/proc/" + std::to_string(pid) + "/cgroup", kMostCgroupBytes);
  return text ? std::optional(std::move(*text)) : std::nullopt;
}

Result<Cgroup> Cgroup::in(const std::string& real_path, std::string_view mountinfo, uint64_t id) {
  std::optional<Mount> best;
  while (!mountinfo.empty()) {
    const std::string_view line = mountinfo.substr(0, mountinfo.find('\n'));
    mountinfo.remove_prefix(std::min(mountinfo.size(), line.size() + 1));
    Mount mount = parse_mount(line);
    if (mount.type != (id != 0 ? "cgroup2" : "cgroup") || !below(real_path, mount.place)) continue;
    // The last of two mounts at one place is the one that is seen.
    if (!best || mount.place.size() >= best->place.size()) best = std::move(mount);
  }
  if (!best) return fail(Code::kInvalidArgument, real_path + ": no mount of cgroups: " + kRemedy);
  Cgroup out;
  out.path_ = (best->root == "/" ? "" : best->root) + std::string(*below(real_path, best->place));
  if (out.path_.empty()) out.path_ = "/";
  out.id_ = id;
  if (id == 0) out.controllers_ = "," + best->options + ",";
  return out;
}

Result<Cgroup> Cgroup::open(const std::string& path) {
  const std::string shown = printable(path);
  const UniqueFd fd(::open(path.c_str(), O_PATH | O_CLOEXEC | O_DIRECTORY));
  if (!fd.valid()) {
    const int err = errno;
    if (err == ENOENT || err == ENOTDIR)
      return fail(Code::kNotFound, "no such cgroup: " + shown + ": " + kRemedy);
    return fail_errno(Code::kPermission, err, shown);
  }
  struct statfs system = {};
  struct stat info = {};
  if (::fstatfs(fd.get(), &system) != 0 || ::fstat(fd.get(), &info) != 0)
    return fail_errno(Code::kIo, errno, shown);
  const bool unified = system.f_type == CGROUP2_SUPER_MAGIC;
  if (!unified && system.f_type != CGROUP_SUPER_MAGIC)
    return fail(Code::kInvalidArgument, shown + " is no cgroup: " + kRemedy);
  struct Free {
    void operator()(char* text) const { ::free(text); }
  };
  const std::unique_ptr<char, Free> real(::realpath(path.c_str(), nullptr));
  if (!real) return fail_errno(Code::kIo, errno, shown);
  auto mountinfo = read_proc_file("/proc/self/mountinfo");
  if (!mountinfo) return tl::unexpected<Error>(mountinfo.error());
  return in(real.get(), *mountinfo, unified ? info.st_ino : 0);
}

bool Cgroup::contains_line_of(std::string_view text) const {
  while (const auto line = take_cgroup_line(text)) {
    const std::string_view names = line->controllers;
    const std::string_view one = names.substr(0, names.find(','));
    const bool ours = id_ != 0 ? names.empty() : !one.empty() && in_list(controllers_, one);
    if (ours) return below(line->path, path_).has_value();
  }
  return false;
}

}  // namespace gpuprof::target

// SPDX-License-Identifier: Apache-2.0
#include "daemon/target/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <memory>
#include <unordered_map>

#include "daemon/target/text.h"

namespace gpuprof::target {
namespace {

struct CloseDir {
  void operator()(DIR* dir) const { ::closedir(dir); }
};

std::string proc_path(uint32_t pid, const char* leaf) {
  return "/proc/" + std::to_string(pid) + "/" + leaf;
}

Error proc_error(uint32_t pid, const Error& error) {
  Error out = error;
  const std::string who = "process " + std::to_string(pid);
  if (error.sys_errno == ENOENT || error.sys_errno == ESRCH) {
    out.code = Code::kNotFound;
    out.message = "no such process: " + std::to_string(pid);
  } else if (error.sys_errno == EACCES || error.sys_errno == EPERM) {
    out.code = Code::kPermission;
    out.message = "not permitted to look into " + who +
                  ": run as root, or give gpu-profiled CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH";
  } else {
    out.message.insert(0, who + ": ");
  }
  return out;
}

template <class T>
bool take_number(std::string_view& text, T& value, int base = 10) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

bool take_char(std::string_view& text, char expected) {
  if (text.empty() || text.front() != expected) return false;
  text.remove_prefix(1);
  return true;
}

constexpr std::string_view kDeleted = " (deleted)";

// The last number in the line of /proc/PID/status that begins with `key`.
std::optional<uint32_t> last_of_status(uint32_t pid, std::string_view key) {
  auto text = read_proc_file(proc_path(pid, "status"), 65536);
  if (!text) return {};
  const size_t at = text->find(key);
  if (at == std::string::npos) return {};
  std::string_view line = std::string_view(*text).substr(at + key.size());
  line = line.substr(0, line.find('\n'));
  const size_t last = line.find_last_of(" \t");
  if (last == std::string_view::npos) return {};
  line.remove_prefix(last + 1);
  uint32_t out = 0;
  if (!take_number(line, out)) return {};
  return out;
}

}  // namespace

Result<std::string> read_proc_file(const std::string& path, size_t max_bytes) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return fail_errno(Code::kIo, errno, path);
  std::string out;
  char buffer[16384];
  while (out.size() < max_bytes) {
    const ssize_t got = ::read(fd.get(), buffer, std::min(sizeof buffer, max_bytes - out.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail_errno(Code::kIo, errno, path);
    if (got == 0) break;
    out.append(buffer, static_cast<size_t>(got));
  }
  return out;
}

std::optional<ProcessStat> parse_stat(std::string_view line) {
  ProcessStat out;
  if (!take_number(line, out.pid) || !take_char(line, ' ') || !take_char(line, '(')) return {};
  const size_t close = line.rfind(')');
  if (close == std::string_view::npos) return {};
  out.comm = printable(line.substr(0, close), 64);
  line.remove_prefix(close + 1);
  if (line.size() < 4 || line[0] != ' ') return {};
  out.state = line[1];
  line.remove_prefix(2);
  if (!take_char(line, ' ') || !take_number(line, out.parent)) return {};
  for (int field = 5; field < 22; ++field) {  // ppid was field 4, the start time is field 22
    if (!take_char(line, ' ')) return {};
    line.remove_prefix(std::min(line.find(' '), line.size()));
  }
  if (!take_char(line, ' ') || !take_number(line, out.start_ticks)) return {};
  return out;
}

Result<ProcessStat> process_stat(uint32_t pid) {
  auto text = read_proc_file(proc_path(pid, "stat"), 4096);
  if (!text) return tl::unexpected<Error>(proc_error(pid, text.error()));
  auto stat = parse_stat(*text);
  if (!stat || stat->pid != pid)
    return fail(Code::kCorrupt, proc_path(pid, "stat") + ": unknown format");
  return *stat;
}

Result<ProcessId> process_id(uint32_t pid) {
  auto stat = process_stat(pid);
  if (!stat) return tl::unexpected<Error>(stat.error());
  return ProcessId{pid, stat->start_ticks};
}

std::vector<ProcessStat> process_tree(std::span<const ProcessId> roots) {
  std::unordered_map<uint32_t, ProcessStat> living;
  std::unordered_multimap<uint32_t, uint32_t> children;
  const std::unique_ptr<DIR, CloseDir> dir(::opendir("/proc"));
  while (const dirent* entry = dir ? ::readdir(dir.get()) : nullptr) {
    uint32_t number = 0;
    std::string_view name = entry->d_name;
    if (!take_number(name, number) || !name.empty()) continue;
    auto stat = process_stat(number);
    if (!stat) continue;
    children.emplace(stat->parent, number);
    living.emplace(number, std::move(*stat));
  }
  std::vector<ProcessStat> out;
  const auto take = [&](uint32_t pid) {
    auto node = living.extract(pid);  // so each once
    if (!node.empty()) out.push_back(std::move(node.mapped()));
  };
  for (const ProcessId& root : roots) {
    const auto at = living.find(root.pid);
    if (at != living.end() && at->second.start_ticks == root.start_ticks) take(root.pid);
  }
  for (size_t at = 0; at < out.size(); ++at) {
    const auto [first, last] = children.equal_range(out[at].pid);
    for (auto it = first; it != last; ++it) take(it->second);
  }
  return out;
}

std::vector<uint32_t> descendants(uint32_t pid) {
  const auto root = process_id(pid);
  if (!root) return {};
  std::vector<uint32_t> out;
  for (const ProcessStat& stat : process_tree(std::span(&*root, 1))) out.push_back(stat.pid);
  if (!out.empty()) out.erase(out.begin());  // itself
  return out;
}

Result<UniqueFd> open_pidfd(ProcessId process) {
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  if (!fd.valid()) {
    const int err = errno;
    if (err == ESRCH || err == EINVAL)
      return fail(Code::kNotFound, "no such process: " + std::to_string(process.pid));
    return fail_errno(Code::kIo, err, "pidfd_open(" + std::to_string(process.pid) + ")");
  }
  // The number may have been reused before the pidfd pinned it.
  auto now = process_id(process.pid);
  if (!now) return tl::unexpected<Error>(now.error());
  if (*now != process)
    return fail(Code::kNotFound, "no such process: " + std::to_string(process.pid));
  return fd;
}

std::optional<uint32_t> process_of_thread(uint32_t tid) {
  const auto process = last_of_status(tid, "\nTgid:");
  return process && *process != tid ? process : std::nullopt;
}

std::string executable_of(uint32_t pid) {
  char path[PATH_MAX];
  const std::string link = "/proc/" + std::to_string(pid) + "/exe";
  const ssize_t length = ::readlink(link.c_str(), path, sizeof path);
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : std::string();
}

std::optional<uint32_t> innermost_pid(uint32_t pid) { return last_of_status(pid, "\nNSpid:"); }

Status check_own_proc() {
  char link[32] = {};
  if (::readlink("/proc/self", link, sizeof link - 1) > 0 && link == std::to_string(::getpid()))
    return {};
  return fail(Code::kNoTarget,
              "/proc is not mounted, or is another pid namespace's: mount one of ours (unshare "
              "--mount-proc, mount -t proc proc /proc), or run gpu-profiled in that namespace");
}

bool same_time_namespace(uint32_t pid) {
  struct stat ours = {}, theirs = {};
  if (::stat("/proc/self/ns/time", &ours) != 0) return true;  // before Linux 5.6: only one exists
  if (::stat(proc_path(pid, "ns/time").c_str(), &theirs) != 0) return false;
  return ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino;
}

Result<std::optional<std::string>> environment_value(uint32_t pid, std::string_view name) {
  auto values = environment_values(pid, std::span(&name, 1));
  if (!values) return tl::unexpected<Error>(values.error());
  return std::move(values->front());
}

Result<std::vector<std::optional<std::string>>> environment_values(
    uint32_t pid, std::span<const std::string_view> names) {
  auto text = read_proc_file(proc_path(pid, "environ"), 4u << 20);
  if (!text) return tl::unexpected<Error>(proc_error(pid, text.error()));
  std::vector<std::optional<std::string>> out(names.size());
  std::string_view rest = *text;
  while (!rest.empty()) {
    const std::string_view entry = rest.substr(0, rest.find('\0'));
    rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
    for (size_t i = 0; i < names.size(); ++i) {
      const std::string_view name = names[i];
      if (!out[i] && entry.size() > name.size() && entry.starts_with(name) &&
          entry[name.size()] == '=')
        out[i] = entry.substr(name.size() + 1);
    }
  }
  return out;
}

std::string_view Mapping::file_name() const {
  std::string_view name = path;
  if (name.ends_with(kDeleted)) name.remove_suffix(kDeleted.size());
  return name.substr(name.rfind('/') + 1);
}

std::string Mapping::map_files_name() const {
  char text[40];
  std::snprintf(text, sizeof text, "%" PRIx64 "-%" PRIx64, start, end);
  return text;
}

std::optional<Mapping> parse_mapping(std::string_view line) {
  Mapping out;
  unsigned major_number = 0, minor_number = 0;
  if (!take_number(line, out.start, 16) || !take_char(line, '-') ||
      !take_number(line, out.end, 16) || !take_char(line, ' ') || line.size() < 5)
    return {};
  out.executable = line[2] == 'x';
  line.remove_prefix(4);
  if (!take_char(line, ' ') || !take_number(line, out.offset, 16) || !take_char(line, ' ') ||
      !take_number(line, major_number, 16) || !take_char(line, ':') ||
      !take_number(line, minor_number, 16) || !take_char(line, ' ') ||
      !take_number(line, out.inode))
    return {};
  out.device = makedev(major_number, minor_number);
  const size_t path = line.find_first_not_of(' ');
  if (path != std::string_view::npos) out.path = line.substr(path);
  return out.start < out.end ? std::optional(out) : std::nullopt;
}

Result<std::vector<Mapping>> file_mappings(uint32_t pid) {
  auto text = read_proc_file(proc_path(pid, "maps"));
  if (!text) return tl::unexpected<Error>(proc_error(pid, text.error()));
  std::vector<Mapping> out;
  std::string_view rest = *text;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    auto mapping = parse_mapping(line);
    if (mapping && mapping->inode != 0) out.push_back(std::move(*mapping));
  }
  return out;
}

}  // namespace gpuprof::target

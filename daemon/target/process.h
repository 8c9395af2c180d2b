// SPDX-License-Identifier: Apache-2.0
//
// What /proc says about processes: identity, descent, environment, mappings.
//
// Everything here is a snapshot of something that may change or vanish at once; the callers compare
// ProcessId before they act on a pid. Any thread may call.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/process_id.h"
#include "daemon/base/result.h"
#include "daemon/base/unique_fd.h"

namespace gpuprof::target {

// The fields of /proc/PID/stat (proc_pid_stat(5)) that we use.
struct ProcessStat {
  uint32_t pid = 0;
  uint32_t parent = 0;
  char state = '?';
  uint64_t start_ticks = 0;
  std::string comm;  // printable
};

// Parses one line of /proc/PID/stat; nullopt where it is none. The command name may hold anything,
// parentheses and newlines included.
std::optional<ProcessStat> parse_stat(std::string_view line);

// kNotFound: no such process; the message names the pid.
Result<ProcessStat> process_stat(uint32_t pid);
Result<ProcessId> process_id(uint32_t pid);

// Those of `roots` that live, and all their living descendants; each once.
std::vector<ProcessStat> process_tree(std::span<const ProcessId> roots);

// All living descendants of `pid`, parents before their children, without `pid`.
std::vector<uint32_t> descendants(uint32_t pid);

// A pidfd of exactly this process: poll it for POLLIN to learn of its exit. Linux 5.3.
Result<UniqueFd> open_pidfd(ProcessId process);

// The process that `tid` is a thread of; nullopt: it is a process, or nothing at all.
std::optional<uint32_t> process_of_thread(uint32_t tid);

// The program that it runs, as the link /proc/PID/exe says it; empty: not to be told.
std::string executable_of(uint32_t pid);

// `pid` as the process itself sees it: the last number of NSpid in /proc/PID/status.
std::optional<uint32_t> innermost_pid(uint32_t pid);

// kNoTarget: /proc is there for another pid namespace than ours, so that its numbers are none of
// those that the kernel gives us.
Status check_own_proc();

// Does the process live in our time namespace? Its start time in its own /proc differs otherwise.
bool same_time_namespace(uint32_t pid);

// The value of `name` in the environment the process was started with. kPermission: may not look.
Result<std::optional<std::string>> environment_value(uint32_t pid, std::string_view name);
// Likewise, of each of `names`. The first entry of a name counts, as for getenv(3); at most 4 MiB
// are read.
Result<std::vector<std::optional<std::string>>> environment_values(
    uint32_t pid, std::span<const std::string_view> names);

// One line of /proc/PID/maps.
struct Mapping {
  uint64_t start = 0;
  uint64_t end = 0;
  uint64_t offset = 0;
  uint64_t inode = 0;
  dev_t device = 0;
  bool executable = false;
  std::string path;  // with " (deleted)" where the kernel adds it; empty for anonymous memory

  // Last component of the path without " (deleted)".
  [[nodiscard]] std::string_view file_name() const;
  // The name of its link under /proc/PID/map_files.
  [[nodiscard]] std::string map_files_name() const;
};

std::optional<Mapping> parse_mapping(std::string_view line);

// File-backed mappings only. kNotFound or kPermission (ptrace access is needed, the message says
// so).
Result<std::vector<Mapping>> file_mappings(uint32_t pid);

// A whole small file of /proc, at most `max_bytes`.
Result<std::string> read_proc_file(const std::string& path, size_t max_bytes = 64u << 20);

}  // namespace gpuprof::target

// SPDX-License-Identifier: Apache-2.0
//
// RootWalk: a path followed step by step inside a process's root, as the kernel would for a user of
// that process.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/base/unique_fd.h"

namespace gpuprof::doctor {

// Whose permissions count: the file-system user of a process (proc_pid_status(5), Uid and Gid).
struct FileUser {
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;
  bool overrides = false;  // CAP_DAC_OVERRIDE or CAP_DAC_READ_SEARCH: modes do not bind it
};

// As /proc/PID/status has it, in our user namespace. kNotFound, kPermission.
Result<FileUser> file_user(uint32_t pid);
// The text of that file.
FileUser parse_file_user(const std::string& status);

// The end of the walk, or where it had to stop. Modes decide; where a file has an access control
// list they do not tell, and nothing is said to be refused.
struct RootWalk {
  enum class Stop {
    kNowhere,    // `file` is what the path names
    kMissing,    // `where` does not exist
    kDangling,   // `where` is a link to `target`, which does not exist
    kNoSearch,   // the user may not pass through the directory `where`
    kNotFolder,  // `where` is on the way and no directory
    kLoop,       // more links than the kernel follows
    kUnseen,     // we may not look there: `error`
  };
  Stop stop = Stop::kNowhere;
  std::string where;
  std::string target;
  int error = 0;  // errno
  UniqueFd file;  // O_PATH
};

RootWalk walk(const UniqueFd& root, const std::string& path, const FileUser& user);

// By its mode alone; true where an access control list or a capability of the user decides.
bool may_read(const UniqueFd& file, const FileUser& user);

}  // namespace gpuprof::doctor

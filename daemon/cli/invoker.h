// SPDX-License-Identifier: Apache-2.0
//
// Invoker: the user on whose behalf we work, and as whom `run` starts its command.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/cli/users.h"

namespace gpuprof::cli {

struct Invoker {
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;
  std::string name;
  std::string home;
  bool switches = false;  // differs from who we are: the command must change identity first
  std::string note;       // what could not be found, and what holds in its stead; "": nothing

  // `user` (--user) where not empty; else the caller of sudo (SUDO_UID, SUDO_GID) if we are root;
  // else ourselves. Errors: kInvalidArgument, kPermission (switching needs root).
  static Result<Invoker> resolve(const std::string& user, const Users& users = Users());
};

// Turns this process into one of `invoker`, for good; errno, 0 on success. Async-signal-safe: for
// the child of a fork.
int become(const Invoker& invoker);

}  // namespace gpuprof::cli

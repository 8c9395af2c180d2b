// SPDX-License-Identifier: Apache-2.0
//
// Command: the child process of `run`.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/base/unique_fd.h"
#include "daemon/cli/environment.h"
#include "daemon/cli/invoker.h"
#include "daemon/cli/limits.h"

namespace gpuprof::cli {

// Forked at once, exec'd on start(): in between its pid can be watched, so that not one launch of
// it goes unseen. It stays in our process group, so the terminal's signals reach it as they reach
// us; everything else is inherited, but our descriptors are not (all are close-on-exec). If we die
// before start(), the child ends without having run the command.
class Command {
 public:
  // `original_mask` is the signal mask the command shall have, `limits` are its resource limits.
  // Errors: kIo.
  static Result<Command> fork(const std::vector<std::string>& argv, const Environment& environment,
                              const Invoker& invoker, const sigset_t& original_mask,
                              const InheritedLimits& limits = {});

  // Lets the child exec. kNotFound, kPermission, kIo: the command could not be started and why; the
  // child is then reaped.
  Status start();

  // Ends the child without running the command. Only before start().
  void abandon();

  // The exit status as a shell gives it (128+N on signal N) once the command has ended, else
  // nullopt. Reaps; repeated calls return the same.
  std::optional<int> poll_exit();
  // Waits for it.
  int wait_exit();

  // False with errno where it could not be sent.
  bool send(int signal) const;
  [[nodiscard]] pid_t pid() const { return pid_; }

  Command(Command&&) = default;
  Command& operator=(Command&&) = delete;

 private:
  Command() = default;
  pid_t pid_ = -1;
  std::string name_;
  UniqueFd gate_;        // write end: a byte starts the command
  UniqueFd exec_error_;  // read end: end of file when exec succeeded, else errno
  std::optional<int> status_;
};

}  // namespace gpuprof::cli

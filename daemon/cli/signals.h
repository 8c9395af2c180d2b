// SPDX-License-Identifier: Apache-2.0
//
// Signals as things to read instead of interruptions.
#pragma once

#include <signal.h>
#include <sys/signalfd.h>

#include <optional>

#include "daemon/base/result.h"
#include "daemon/base/unique_fd.h"

namespace gpuprof::cli {

// Blocks SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE and SIGXFSZ for the whole
// process and hands the first six out by next(). Make it before any thread. The other two are only
// blocked, so that writing to a closed pipe, or beyond the largest file size, is an error and not
// the end. SIGCHLD is set to its default.
class Signals {
 public:
  static Result<Signals> create();

  // The next pending signal, without waiting.
  std::optional<signalfd_siginfo> next();
  // The mask that was in force before: what a child process must have.
  [[nodiscard]] const sigset_t& original_mask() const { return original_; }

 private:
  UniqueFd fd_;
  sigset_t original_ = {};
};

}  // namespace gpuprof::cli

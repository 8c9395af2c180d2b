// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/signals.h"

namespace gpuprof::cli {

Result<Signals> Signals::create() {
  Signals out;
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2})
    ::sigaddset(&set, signal);
  out.fd_.reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!out.fd_.valid()) return fail_errno(Code::kIo, errno, "signalfd");
  ::sigaddset(&set, SIGPIPE);
  ::sigaddset(&set, SIGXFSZ);
  if (::sigprocmask(SIG_BLOCK, &set, &out.original_) != 0)
    return fail_errno(Code::kIo, errno, "sigprocmask");
  // Whoever started us may have had it ignored: then nobody could wait for a child.
  if (::signal(SIGCHLD, SIG_DFL) == SIG_ERR) return fail_errno(Code::kIo, errno, "signal");
  return out;
}

std::optional<signalfd_siginfo> Signals::next() {
  signalfd_siginfo info = {};
  if (::read(fd_.get(), &info, sizeof info) != static_cast<ssize_t>(sizeof info)) return {};
  return info;
}

}  // namespace gpuprof::cli

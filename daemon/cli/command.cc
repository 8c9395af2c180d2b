// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/command.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include <cerrno>

namespace gpuprof::cli {
namespace {

// What the child reports when it does not become the command.
struct ExecFailure {
  int step = 0;  // 0 exec, 1 identity
  int error = 0;
};

// Async-signal-safe: the child of a fork.
[[noreturn]] void run_child(int gate, int report, char* const* argv, char* const* envp,
                            const Invoker& invoker, const sigset_t& mask,
                            const InheritedLimits& limits) {
  char byte = 0;
  ssize_t got = 0;
  do {
    got = ::read(gate, &byte, 1);
  } while (got < 0 && errno == EINTR);
  if (got != 1) ::_exit(127);  // gpu-profiled died or gave up
  ExecFailure failure;
  failure.step = 1;
  limits.restore();
  failure.error = become(invoker);
  if (failure.error == 0) {
    ::sigprocmask(SIG_SETMASK, &mask, nullptr);
    ::execvpe(argv[0], argv, envp);
    failure.step = 0;
    failure.error = errno;
  }
  [[maybe_unused]] const ssize_t put = ::write(report, &failure, sizeof failure);
  ::_exit(127);
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (const std::string& text : strings) out.push_back(const_cast<char*>(text.c_str()));
  out.push_back(nullptr);
  return out;
}

int shell_status(int status) {
  if (WIFSIGNALED(status)) return 128 + WTERMSIG(status);
  return WEXITSTATUS(status);
}

}  // namespace

Result<Command> Command::fork(const std::vector<std::string>& argv, const Environment& environment,
                              const Invoker& invoker, const sigset_t& original_mask,
                              const InheritedLimits& limits) {
  int gate[2], report[2];
  if (::pipe2(gate, O_CLOEXEC) != 0) return fail_errno(Code::kIo, errno, "pipe");
  UniqueFd gate_read(gate[0]), gate_write(gate[1]);
  if (::pipe2(report, O_CLOEXEC) != 0) return fail_errno(Code::kIo, errno, "pipe");
  UniqueFd report_read(report[0]), report_write(report[1]);
  const std::vector<char*> args = pointers(argv);
  const std::vector<char*> envp = pointers(environment.entries());

  const pid_t pid = ::fork();
  if (pid < 0) return fail_errno(Code::kIo, errno, "cannot start a process");
  if (pid == 0) {
    ::close(gate_write.release());  // else our own copy would keep the gate open for ever
    run_child(gate_read.get(), report_write.get(), args.data(), envp.data(), invoker, original_mask,
              limits);
  }
  Command out;
  out.pid_ = pid;
  out.name_ = argv[0];
  out.gate_ = std::move(gate_write);
  out.exec_error_ = std::move(report_read);
  return out;
}

Status Command::start() {
  const char byte = 1;
  ssize_t put = 0;
  do {
    put = ::write(gate_.get(), &byte, 1);
  } while (put < 0 && errno == EINTR);
  gate_.reset();
  ExecFailure failure;
  ssize_t got = 0;
  do {
    got = ::read(exec_error_.get(), &failure, sizeof failure);
  } while (got < 0 && errno == EINTR);
  exec_error_.reset();
  if (got != static_cast<ssize_t>(sizeof failure)) return {};
  wait_exit();
  if (failure.step == 1)
    return fail_errno(Code::kIo, failure.error, "cannot become the user of the command");
  return fail_errno(Code::kIo, failure.error, "cannot run " + name_);
}

void Command::abandon() {
  gate_.reset();
  wait_exit();
}

std::optional<int> Command::poll_exit() {
  if (status_) return status_;
  int status = 0;
  const pid_t got = ::waitpid(pid_, &status, WNOHANG);
  if (got == pid_) status_ = shell_status(status);
  return status_;
}

int Command::wait_exit() {
  if (status_) return *status_;
  int status = 0;
  pid_t got = 0;
  do {
    got = ::waitpid(pid_, &status, 0);
  } while (got < 0 && errno == EINTR);
  status_ = got == pid_ ? shell_status(status) : 127;
  return *status_;
}

bool Command::send(int signal) const {
  errno = ESRCH;
  return pid_ > 0 && !status_ && ::kill(pid_, signal) == 0;
}

}  // namespace gpuprof::cli

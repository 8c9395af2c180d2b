// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/unwind/recorded/tracee.h"

#include <fcntl.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "daemon/unwind/maps_line.h"

namespace gpuprof::unwind::test {
namespace {

constexpr uint64_t kMostStack = 256 << 10;  // as the profiler copies

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "%s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

// Field 28 of /proc/PID/stat, counted behind the command's name.
uint64_t start_of_main_stack(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(in, text);
  std::istringstream fields(text.substr(text.rfind(')') + 2));
  std::string field;
  for (int i = 3; i <= 28; ++i) fields >> field;
  return std::stoull(field);
}

// The main thread's stack ends where its arguments begin, another one with its mapping.
uint64_t stack_top(pid_t pid, uint64_t sp) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/maps");
  for (std::string text; std::getline(in, text);) {
    const auto line = parse_maps_line(text);
    if (!line || sp < line->start || sp >= line->end) continue;
    return line->path == "[stack]" ? start_of_main_stack(pid) : line->end;
  }
  return 0;
}

std::string read_stack(pid_t pid, uint64_t from, uint64_t to) {
  std::string out(to - from, '\0');
  const int fd = open(("/proc/" + std::to_string(pid) + "/mem").c_str(), O_RDONLY | O_CLOEXEC);
  const ssize_t n = pread(fd, out.data(), out.size(), static_cast<off_t>(from));
  if (n < 0) die("pread");
  out.resize(static_cast<size_t>(n));
  close(fd);
  return out;
}

}  // namespace

Tracee::Tracee(const std::vector<std::string>& command) {
  pid_ = fork();
  if (pid_ < 0) die("fork");
  if (pid_ == 0) {
    std::vector<char*> argv;
    for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    ptrace(PTRACE_TRACEME, 0, 0, 0);
    execvp(argv[0], argv.data());
    die(argv[0]);
  }
  int status = 0;
  if (waitpid(pid_, &status, 0) != pid_ || !WIFSTOPPED(status)) std::exit(1);
  const auto options =
      reinterpret_cast<void*>(PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL);
  if (ptrace(PTRACE_SETOPTIONS, pid_, 0, options) != 0) die("PTRACE_SETOPTIONS");
  ptrace(PTRACE_CONT, pid_, 0, 0);
}

Recording::Stack Tracee::stack_of(pid_t thread) const {
  user_regs_struct r = {};
  if (ptrace(PTRACE_GETREGS, thread, 0, &r) != 0) die("PTRACE_GETREGS");
  Recording::Stack out;
  for (const auto word : {r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10,
                          r.r11, r.r12, r.r13, r.r14, r.r15, r.rip}) {
    out.add_registers(word);
  }
  const uint64_t sp = r.rsp;
  out.set_address(sp);
  out.set_top(stack_top(pid_, sp));
  out.set_bytes(read_stack(pid_, sp, std::clamp(out.top(), sp, sp + kMostStack)));
  out.set_below(read_stack(pid_, sp - kBelow, sp));
  return out;
}

int Tracee::run(int steps, const std::function<void(const Recording::Stack&)>& stopped) {
  std::map<pid_t, int> stepping;  // how many steps a thread still goes
  for (;;) {
    int status = 0;
    const pid_t thread = waitpid(-1, &status, __WALL);
    if (thread < 0) die("waitpid");
    if (WIFEXITED(status) || WIFSIGNALED(status)) {
      if (thread == pid_) return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      continue;
    }
    int signal = WSTOPSIG(status);
    siginfo_t info = {};
    if (status >> 16 != 0) {
      signal = 0;  // clone or exec
    } else if (signal == SIGSTOP) {
      signal = 0;  // a new thread's first stop
    } else if (signal == SIGTRAP && ptrace(PTRACE_GETSIGINFO, thread, 0, &info) == 0) {
      if (info.si_code == SI_KERNEL) stepping[thread] = steps;
      signal = 0;
      stopped(stack_of(thread));
    }
    const bool steps_on = stepping[thread] > 0;
    if (steps_on) --stepping[thread];
    ptrace(steps_on ? PTRACE_SINGLESTEP : PTRACE_CONT, thread, 0, signal);
  }
}

}  // namespace gpuprof::unwind::test

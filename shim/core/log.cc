// SPDX-License-Identifier: Apache-2.0
#include "shim/core/log.h"

#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shim/core/held_fd.h"
#include "shim/core/self.h"

namespace gpuprof::shim {
namespace {

constexpr size_t kLineBytes = 1024;

// GPU_PROFILED_LOG=stderr: descriptor 2 is whatever the application makes of it.
constinit std::atomic<bool> to_stderr{false};
constinit HeldFd log_file;

// One buffer, one write: lines of several threads and processes do not mix.
size_t format_line(char (&line)[kLineBytes], const char* format, va_list arguments) {
  int used = snprintf(line, sizeof line, "gpu-profiled[%ld]: ", syscall(SYS_getpid));
  if (used < 0) return 0;
  const int text =
      vsnprintf(line + used, sizeof line - static_cast<size_t>(used) - 1, format, arguments);
  if (text < 0) return 0;
  const size_t length = strnlen(line, sizeof line - 2);
  for (size_t i = 0; i < length; ++i) {  // a path may hold anything, and a line is one line
    if (static_cast<unsigned char>(line[i]) < ' ' || line[i] == '\x7f') line[i] = '?';
  }
  line[length] = '\n';
  return length + 1;
}

}  // namespace

void open_log(const char* target) {
  if (target == nullptr || target[0] == '\0') return;
  if (strcmp(target, "stderr") == 0) {
    to_stderr.store(true, std::memory_order_relaxed);
    return;
  }
  const long fd = syscall(SYS_openat, AT_FDCWD, target,
                          O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY |
                              O_NONBLOCK,  // a FIFO nobody reads would hold up cuInit
                          0600);
  if (fd < 0) return;
  // High, for the same reason as the memfd's: the application may count on low numbers.
  const long high = syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 100);
  if (high >= 0) syscall(SYS_close, fd);
  (void)log_file.hold(static_cast<int>(high >= 0 ? high : fd));
}

bool log_enabled() { return to_stderr.load(std::memory_order_relaxed) || log_file.number() >= 0; }

void log_line(const char* format, ...) {
  const int fd = to_stderr.load(std::memory_order_relaxed) ? STDERR_FILENO : log_file.checked();
  if (fd < 0) return;
  char line[kLineBytes];
  va_list arguments;
  va_start(arguments, format);
  const size_t length = format_line(line, format, arguments);
  va_end(arguments);
  write_all(fd, line, length);
}

void complain(const char* format, ...) {
  char line[kLineBytes];
  va_list arguments;
  va_start(arguments, format);
  const size_t length = format_line(line, format, arguments);
  va_end(arguments);
  write_all(STDERR_FILENO, line, length);
  const int fd = log_file.checked();
  if (fd >= 0) write_all(fd, line, length);
}

}  // namespace gpuprof::shim

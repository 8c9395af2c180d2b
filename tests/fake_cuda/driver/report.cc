// SPDX-License-Identifier: Apache-2.0
// Broken rules: a line each in $FAKE_CUDA_REPORT and on stderr, and exit status 99.
#include <fcntl.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/fake_cuda/driver/state.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace fakecuda {
namespace {

std::atomic<uint64_t> count{0};

constexpr int kViolationStatus = 99;

/// FAKE_CUDA_ALLOW=rule,rule: for tests of the fake itself.
bool waived(const char* rule) {
  static const char* allow = getenv("FAKE_CUDA_ALLOW");
  if (allow == nullptr) return false;
  const size_t length = strlen(rule);
  for (const char* at = allow; (at = strstr(at, rule)) != nullptr; at += length) {
    if ((at == allow || at[-1] == ',') && (at[length] == 0 || at[length] == ',')) return true;
  }
  return false;
}

void report(const char* rule, const char* format, va_list arguments) {
  char line[512];
  int used = snprintf(line, sizeof line, "fake-cuda: violation %s: ", rule);
  used += vsnprintf(line + used, sizeof line - static_cast<size_t>(used) - 40, format, arguments);
  used = used > static_cast<int>(sizeof line) - 40 ? static_cast<int>(sizeof line) - 40 : used;
  used += snprintf(line + used, 40, " (pid %d tid %d)\n", getpid(), gettid());
  const auto length = static_cast<size_t>(used);
  if (write(2, line, length) < 0) { /* stderr may be closed */
  }
  if (const char* path = getenv("FAKE_CUDA_REPORT")) {
    const int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (fd >= 0) {
      if (write(fd, line, length) < 0) perror("FAKE_CUDA_REPORT");
      close(fd);
    }
  }
}

/// Registered when the library is loaded, so it runs after the handlers of everything that came
/// later, the shim's included.
void at_exit() {
  if (const char* path = getenv("FAKE_CUDA_TRUTH")) {
    if (driver().owner_pid.load() == getpid() && !write_truth(path)) perror(path);
  }
  if (count.load() != 0) {
    fflush(nullptr);
    _exit(kViolationStatus);
  }
}

__attribute__((constructor)) void install() { atexit(at_exit); }

}  // namespace

void violation(const char* rule, const char* format, ...) {
  if (waived(rule)) return;
  count.fetch_add(1);
  va_list arguments;
  va_start(arguments, format);
  report(rule, format, arguments);
  va_end(arguments);
}

void fatal(const char* rule, const char* format, ...) {
  count.fetch_add(1);
  va_list arguments;
  va_start(arguments, format);
  report(rule, format, arguments);
  va_end(arguments);
  _exit(kViolationStatus);
}

uint64_t violations() { return count.load(); }

}  // namespace fakecuda

FAKE_EXPORT uint64_t fake_cuda_violations(void) { return fakecuda::violations(); }

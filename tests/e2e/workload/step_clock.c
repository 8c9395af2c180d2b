// SPDX-License-Identifier: Apache-2.0
// LD_PRELOAD: the process's CLOCK_REALTIME is set while it runs. STEP_CLOCK="MS:NS,..." - from MS
// after the first look at the clock on, NS are added to the real time. The driver, CUPTI and the
// shim all see it.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int64_t nanoseconds(const struct timespec* t) {
  return t->tv_sec * 1000000000ll + t->tv_nsec;
}

static int64_t step_at(int64_t elapsed_ns) {
  const char* text = getenv("STEP_CLOCK");
  int64_t step = 0;
  while (text != NULL && *text != '\0') {
    char* end = NULL;
    const long long from_ms = strtoll(text, &end, 10);
    if (*end != ':') break;
    const long long ns = strtoll(end + 1, &end, 10);
    if (elapsed_ns >= from_ms * 1000000) step = ns;
    text = *end == ',' ? end + 1 : NULL;
  }
  return step;
}

int clock_gettime(clockid_t id, struct timespec* out) {
  static int64_t first_ns;
  const long failed = syscall(SYS_clock_gettime, id, out);
  if (failed != 0 || id != CLOCK_REALTIME) return (int)failed;
  struct timespec monotonic;
  syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &monotonic);
  int64_t none = 0;
  __atomic_compare_exchange_n(&first_ns, &none, nanoseconds(&monotonic), 0, __ATOMIC_RELAXED,
                              __ATOMIC_RELAXED);
  const int64_t now = nanoseconds(out) + step_at(nanoseconds(&monotonic) - first_ns);
  out->tv_sec = now / 1000000000;
  out->tv_nsec = now % 1000000000;
  return 0;
}

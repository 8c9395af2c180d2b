// SPDX-License-Identifier: Apache-2.0
// LD_PRELOAD: LATE_CLOCK="N:US" - one reading in N of the program's CLOCK_MONOTONIC comes back US
// microseconds after it was taken, as if the thread had been preempted: others read later times and
// store them meanwhile.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t id, struct timespec* out) {
  static uint32_t readings;
  const long failed = syscall(SYS_clock_gettime, id, out);
  const char* text = getenv("LATE_CLOCK");
  if (failed != 0 || id != CLOCK_MONOTONIC || text == NULL) return (int)failed;
  char* end = NULL;
  const long every = strtol(text, &end, 10);
  if (every <= 0 || *end != ':') return 0;
  // Scattered, or one place of the program would always have its turn and another never.
  const uint32_t scattered = __atomic_add_fetch(&readings, 1, __ATOMIC_RELAXED) * 2654435761u;
  if ((scattered >> 8) % (uint32_t)every != 0) return 0;
  const struct timespec delay = {0, strtol(end + 1, NULL, 10) * 1000};
  nanosleep(&delay, NULL);
  return 0;
}

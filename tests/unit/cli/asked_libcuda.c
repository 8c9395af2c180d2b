/* SPDX-License-Identifier: Apache-2.0 */
/* A libcuda that answers as $ASKED says. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is(const char* what) {
  const char* asked = getenv("ASKED");
  return asked != NULL && strcmp(asked, what) == 0;
}

__attribute__((constructor)) static void at_load(void) {
  if (is("exit")) exit(0);
  if (is("crash")) abort();
  if (is("hang")) pause();
}

#ifndef LACKS_VERSION
int cuDriverGetVersion(int* version);
int cuDriverGetVersion(int* version) {
  *version = 12090;
  if (is("uid")) *version = 100000 + (int)geteuid();
  if (is("nonsense")) *version = 7;
  if (is("injected"))
    *version =
        getenv("CUDA_INJECTION64_PATH") != NULL || getenv("LD_PRELOAD") != NULL ? 11000 : 13000;
  return is("error") ? 100 : 0;
}
#endif

int cuInit(unsigned flags);
int cuInit(unsigned flags) {
  if (is("forge")) {
    puts("version 999990\nend");
    fflush(stdout);
    pause();
  }
  if (is("flood")) {
    for (;;) puts("loaded /the/same/line/for/ever");
  }
  if (is("hang-in-init")) pause();
  if (is("child")) { /* nvidia-modprobe: it outlives the answer and holds our pipe */
    if (fork() == 0) {
      sleep(600);
      _exit(0);
    }
    return 0;
  }
  return is("804") ? 804 : (int)flags;
}

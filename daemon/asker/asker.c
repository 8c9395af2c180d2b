/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads one libcuda, asks its version and, where that is above a bound, whether it works here, and
 * says so in lines:
 *
 *   failed TEXT              it does not load, or has no such functions
 *   loaded PATH              what the loader took
 *   version 13000            cuDriverGetVersion, which needs no GPU and no initialisation
 *   init 804                 cuInit, of a version above the bound only
 *   end
 *
 * usage: NAME-OR-PATH BOUND. A libcuda may crash, hang or print: daemon/cli/driver_question.cc runs
 * this as the command's user, for a bounded time, and believes no line.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

extern long write(int fd, const void* from, unsigned long bytes);
int gpuprof_asker_main(int argc, char** argv);

static void say(const char* text) {
  size_t length = 0;
  while (text[length] != '\0') ++length;
  while (length > 0) {
    const long put = write(1, text, length);
    if (put <= 0) return;
    text += put;
    length -= (size_t)put;
  }
}

static void say_number(const char* name, int number) {
  char digits[16];
  char* at = digits + sizeof digits - 1;
  unsigned rest = number < 0 ? 0u : (unsigned)number;
  *at = '\0';
  *--at = '\n';
  do {
    *--at = (char)('0' + rest % 10);
    rest /= 10;
  } while (rest != 0);
  say(name);
  say(at);
}

static int fail(const char* why) {
  say("failed ");
  say(why == NULL ? "no reason given" : why);
  say("\nend\n");
  return 0;
}

static int bound_of(const char* text) {
  int out = 0;
  for (; *text >= '0' && *text <= '9' && out < 100000000; ++text) out = out * 10 + (*text - '0');
  return out;
}

int gpuprof_asker_main(int argc, char** argv) {
  if (argc != 3) return fail("usage");
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
  if (library == NULL) return fail(dlerror());
  void* const get_version = dlsym(library, "cuDriverGetVersion");
  void* const init = dlsym(library, "cuInit");
  if (get_version == NULL || init == NULL) return fail("it lacks cuDriverGetVersion or cuInit");
  Dl_info place;
  if (dladdr(get_version, &place) != 0) {
    say("loaded ");
    say(place.dli_fname);
    say("\n");
  }
  int version = 0;
  if (((int (*)(int*))get_version)(&version) != 0) return fail("cuDriverGetVersion fails");
  say_number("version ", version);
  if (version > bound_of(argv[2])) say_number("init ", ((int (*)(unsigned))init)(0));
  say("end\n");
  return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 * A process that loads the shim as CUDA's driver does, and goes on: dlopen with RTLD_NOW, then
 * InitializeInjection. Built for an old glibc, to run in any root file system.
 *
 *   host SHIM [--uid N] [--deny-memfd] [--no-files] [--no-memlock]
 *     [--preload LIBRARY]         starts itself again with LD_PRELOAD
 *     [--open LIBRARY]            opens it first, for all to see
 *     [--fill-static-tls FOLDER]  opens tls-512-1.so and its like there until no more fits
 *     [--refused LIBRARY TEXT]    it must not load, for a reason with TEXT: the state is as meant
 *     [--operators LIBRARY]       it calls operator new, which must be this program's
 *
 * The libraries are those of fixtures/. Exit 0: loaded, initialised, and went on; 1: could not be
 * loaded (with dlerror's text); 2: the host's own trouble. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static void fail(const char* what) {
  fprintf(stderr, "host: %s: %s\n", what, strerror(errno));
  _exit(2);
}

static void limit(int resource) {
  const struct rlimit none = {0, 0};
  if (setrlimit(resource, &none) != 0) fail("setrlimit");
}

/* RLIMIT_MEMLOCK says nothing to a process with CAP_IPC_LOCK. */
static void check_memlock(void) {
  static char byte;
  if (mlock(&byte, 1) == 0) {
    fprintf(stderr, "host: memory can be locked though the limit is 0\n");
    _exit(2);
  }
}

/* As a container's seccomp profile may. */
static void deny_memfd(void) {
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const struct sock_fprog program = {sizeof code / sizeof *code, code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    fail("seccomp");
}

/* Calls of this program's operator new and delete, where it has them. */
extern __attribute__((weak)) int host_operator_calls(void);

static int operator_calls(void) { return host_operator_calls ? host_operator_calls() : 0; }

static void* open_or_exit(const char* library, int flags) {
  void* handle = dlopen(library, RTLD_NOW | flags);
  if (handle == NULL) {
    fprintf(stderr, "host: %s\n", dlerror());
    _exit(1);
  }
  return handle;
}

static int is_library(struct dl_phdr_info* info, size_t size, void* library) {
  (void)size;
  return strcmp(info->dlpi_name, library) == 0;
}

static void preload(char** argv, char* library) {
  const char* before = getenv("LD_PRELOAD");
  if (before == NULL || strcmp(before, library) != 0) {
    if (setenv("LD_PRELOAD", library, 1) != 0) fail("setenv");
    execv(argv[0], argv);
    fail(argv[0]);
  }
  if (dl_iterate_phdr(is_library, library) == 0) {
    fprintf(stderr, "host: %s was not preloaded\n", library);
    _exit(2);
  }
}

static void refused(const char* library, const char* text) {
  if (dlopen(library, RTLD_NOW | RTLD_LOCAL) != NULL) {
    fprintf(stderr, "host: %s loads, which it must not\n", library);
    _exit(2);
  }
  const char* why = dlerror();
  if (strstr(why, text) == NULL) {
    fprintf(stderr, "host: refused without a word of %s: %s\n", text, why);
    _exit(2);
  }
}

/* From the largest to the smallest: what the last of one size leaves is less than that size. */
static void fill_static_tls(const char* folder) {
  static const int bytes[] = {512, 64, 8};
  char path[4096];
  for (size_t size = 0; size < sizeof bytes / sizeof *bytes; ++size) {
    for (int n = 1;; ++n) {
      snprintf(path, sizeof path, "%s/tls-%d-%d.so", folder, bytes[size], n);
      if (access(path, R_OK) != 0) {
        fprintf(stderr, "host: there is still static TLS after %d times %d bytes\n", n - 1,
                bytes[size]);
        _exit(2);
      }
      if (dlopen(path, RTLD_NOW | RTLD_LOCAL) != NULL) continue;
      const char* why = dlerror();
      if (strstr(why, "static TLS") != NULL) break;
      fprintf(stderr, "host: %s\n", why);
      _exit(2);
    }
  }
}

static void check_operators(const char* library) {
  const int before = operator_calls();
  open_or_exit(library, RTLD_LOCAL);
  if (operator_calls() != before + 2) {
    fprintf(stderr, "host: a library's operator new and delete are not this program's\n");
    _exit(2);
  }
}

/* Whether `argv` begins with an option about other libraries, and how many arguments it has. */
static int other_libraries(char** all, char** argv, int left) {
  if (strcmp(argv[0], "--preload") == 0 && left > 1) return preload(all, argv[1]), 1;
  if (strcmp(argv[0], "--open") == 0 && left > 1) return open_or_exit(argv[1], RTLD_GLOBAL), 1;
  if (strcmp(argv[0], "--fill-static-tls") == 0 && left > 1) return fill_static_tls(argv[1]), 1;
  if (strcmp(argv[0], "--operators") == 0 && left > 1) return check_operators(argv[1]), 1;
  if (strcmp(argv[0], "--refused") == 0 && left > 2) return refused(argv[1], argv[2]), 2;
  return 0;
}

static void enter_state(int argc, char** argv) {
  int memlock_limited = 0;
  for (int i = 2; i < argc; ++i) {
    const int taken = other_libraries(argv, argv + i, argc - i);
    i += taken;
    if (taken > 0) continue;
    if (strcmp(argv[i], "--uid") == 0 && i + 1 < argc) {
      const uid_t uid = (uid_t)atoi(argv[++i]);
      if (setgid(uid) != 0 || setuid(uid) != 0) fail("setuid");
    } else if (strcmp(argv[i], "--deny-memfd") == 0) {
      deny_memfd();
    } else if (strcmp(argv[i], "--no-files") == 0) {
      limit(RLIMIT_FSIZE);
    } else if (strcmp(argv[i], "--no-memlock") == 0) {
      limit(RLIMIT_MEMLOCK);
      memlock_limited = 1;
    } else {
      fprintf(stderr, "host: unknown option %s\n", argv[i]);
      _exit(2);
    }
  }
  if (memlock_limited) check_memlock();
}

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  enter_state(argc, argv);
  const int calls = operator_calls();
  void* shim = open_or_exit(argv[1], RTLD_LOCAL);
  int (*initialize)(void) = (int (*)(void))dlsym(shim, "InitializeInjection");
  if (initialize == NULL) {
    fprintf(stderr, "host: %s\n", dlerror());
    return 1;
  }
  const int answer = initialize();
  usleep(100 * 1000); /* whatever the shim has begun may run */
  if (operator_calls() != calls) {
    fprintf(stderr, "host: the shim called the program's operator new or delete\n");
    return 1;
  }
  printf("went on after %d\n", answer);
  return fflush(stdout) == 0 ? 0 : 2;
}

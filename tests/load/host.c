/* SPDX-License-Identifier: Apache-2.0
 * A process that loads the shim as CUDA's driver does, and goes on: dlopen with RTLD_NOW, then
 * InitializeInjection. Built for an old glibc, to run in any root file system.
 *
 *   host SHIM [--uid N] [--deny-memfd] [--no-files] [--no-memlock]
 *
 * Exit 0: loaded, initialised, and went on; 1: could not be loaded (with dlerror's text). */
#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  for (int i = 2; i < argc; ++i) {
    if (strcmp(argv[i], "--uid") == 0 && i + 1 < argc) {
      const uid_t uid = (uid_t)atoi(argv[++i]);
      if (setgid(uid) != 0 || setuid(uid) != 0) fail("setuid");
    } else if (strcmp(argv[i], "--deny-memfd") == 0) {
      deny_memfd();
    } else if (strcmp(argv[i], "--no-files") == 0) {
      limit(RLIMIT_FSIZE);
    } else if (strcmp(argv[i], "--no-memlock") == 0) {
      limit(RLIMIT_MEMLOCK);
    } else {
      fprintf(stderr, "host: unknown option %s\n", argv[i]);
      return 2;
    }
  }
  void* shim = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (shim == NULL) {
    fprintf(stderr, "host: %s\n", dlerror());
    return 1;
  }
  int (*initialize)(void) = (int (*)(void))dlsym(shim, "InitializeInjection");
  if (initialize == NULL) {
    fprintf(stderr, "host: %s\n", dlerror());
    return 1;
  }
  const int answer = initialize();
  usleep(100 * 1000); /* whatever the shim has begun may run */
  printf("went on after %d\n", answer);
  return fflush(stdout) == 0 ? 0 : 2;
}

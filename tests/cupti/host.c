/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that uses CUDA as its arguments say, one after the other, and tells what came of it on
 * standard output:
 *
 *   open FILE      dlopen, RTLD_NOW and RTLD_LOCAL          "open FILE: ok", or dlerror's text
 *   user ID        becomes that user
 *   chdir DIR      remove FILE
 *   cuda           libcuda.so.1 and cuInit, at which the shim is injected
 *   call FUNCTION  of the file opened last                  "call FUNCTION: RESULT"
 *   wait           until standard input ends
 *
 * At the end it prints the shim's status page and the files that are mapped.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/memfd_layout.h"

static void* opened;

static void die(const char* what) {
  perror(what);
  exit(2);
}

static void open_library(const char* file) {
  opened = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  printf("open %s: %s\n", file, opened != NULL ? "ok" : dlerror());
}

static void start_cuda(void) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == NULL) {
    fprintf(stderr, "host: %s\n", dlerror());
    exit(2);
  }
  int (*initialize)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
  printf("cuInit: %d\n", initialize == NULL ? -1 : initialize(0));
}

static void call(const char* function) {
  int (*called)(void) = opened == NULL ? NULL : (int (*)(void))dlsym(opened, function);
  if (called == NULL) {
    printf("call %s: none\n", function);
  } else {
    printf("call %s: %d\n", function, called());
  }
}

static int status_fd(void) {
  DIR* listing = opendir("/proc/self/fd");
  if (listing == NULL) die("/proc/self/fd");
  int found = -1;
  for (struct dirent* entry; (entry = readdir(listing)) != NULL && found < 0;) {
    char target[256] = {0};
    if (readlinkat(dirfd(listing), entry->d_name, target, sizeof target - 1) > 0 &&
        strncmp(target, "/memfd:" GPUPROF_MEMFD_NAME, 7 + strlen(GPUPROF_MEMFD_NAME)) == 0) {
      found = atoi(entry->d_name);
    }
  }
  closedir(listing);
  return found;
}

static void show_status(void) {
  static struct gpuprof_status_page page;
  const int fd = status_fd();
  if (fd < 0 || pread(fd, &page, sizeof page, 0) != (ssize_t)sizeof page) return;
  printf("state: %u\nreason: %u\nversion: %u\norigin: %u\npath: %s\ntext: %s\n", page.state,
         page.reason, page.cupti_version, page.cupti_origin, page.cupti_path, page.reason_text);
}

static void show_maps(void) {
  FILE* maps = fopen("/proc/self/maps", "re");
  if (maps == NULL) die("/proc/self/maps");
  static char line[8192];
  while (fgets(line, sizeof line, maps) != NULL) {
    unsigned major, minor;
    unsigned long inode;
    int at = 0;
    if (sscanf(line, "%*s %*s %*s %x:%x %lu %n", &major, &minor, &inode, &at) == 3 && inode != 0) {
      printf("map: %x:%x:%lu %s", major, minor, inode, line + at);
    }
  }
  fclose(maps);
}

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const char* step = argv[i];
    if (strcmp(step, "cuda") == 0) {
      start_cuda();
      continue;
    }
    if (strcmp(step, "wait") == 0) {
      char byte;
      fflush(stdout);
      while (read(STDIN_FILENO, &byte, 1) > 0) {
      }
      continue;
    }
    const char* operand = ++i < argc ? argv[i] : "";
    if (strcmp(step, "open") == 0) {
      open_library(operand);
    } else if (strcmp(step, "call") == 0) {
      call(operand);
    } else if (strcmp(step, "user") == 0) {
      if (setgid((gid_t)atoi(operand)) != 0 || setuid((uid_t)atoi(operand)) != 0) die("setuid");
    } else if (strcmp(step, "chdir") == 0) {
      if (chdir(operand) != 0) die(operand);
    } else if (strcmp(step, "remove") == 0) {
      if (unlink(operand) != 0) die(operand);
    } else {
      fprintf(stderr, "host: unknown step %s\n", step);
      return 2;
    }
  }
  show_status();
  show_maps();
  puts("went on");
  return fflush(stdout) == 0 ? 0 : 2;
}

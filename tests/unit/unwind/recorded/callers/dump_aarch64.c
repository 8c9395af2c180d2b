// SPDX-License-Identifier: Apache-2.0
// Writes its own stacks, as the profiler would copy them, to the file that is named: each x0 to
// x30, sp and pc at a function's first instruction, the stack's top, and the bytes up to it. Linked
// statically and run by an emulator. Return addresses are signed where the compiler is told so.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define UNSIGNED __attribute__((noinline, target("branch-protection=none")))
#define SIGNED __attribute__((noinline, target("branch-protection=pac-ret")))
#define SIGNED_LEAF __attribute__((noinline, target("branch-protection=pac-ret+leaf")))

extern void* __libc_stack_end;
void capture(uint64_t registers[33]);
__asm__(
    ".text\n"
    ".type capture, %function\n"
    "capture:\n"
    "  .cfi_startproc\n"
    "  stp x0, x1, [x0]\n"
    "  stp x2, x3, [x0, #16]\n"
    "  stp x4, x5, [x0, #32]\n"
    "  stp x6, x7, [x0, #48]\n"
    "  stp x8, x9, [x0, #64]\n"
    "  stp x10, x11, [x0, #80]\n"
    "  stp x12, x13, [x0, #96]\n"
    "  stp x14, x15, [x0, #112]\n"
    "  stp x16, x17, [x0, #128]\n"
    "  stp x18, x19, [x0, #144]\n"
    "  stp x20, x21, [x0, #160]\n"
    "  stp x22, x23, [x0, #176]\n"
    "  stp x24, x25, [x0, #192]\n"
    "  stp x26, x27, [x0, #208]\n"
    "  stp x28, x29, [x0, #224]\n"
    "  mov x1, sp\n"
    "  stp x30, x1, [x0, #240]\n"
    "  adr x1, capture\n"
    "  str x1, [x0, #256]\n"
    "  ret\n"
    "  .cfi_endproc\n"
    "  .size capture, . - capture\n");

static FILE* out;
static __thread uint64_t top;

static void write_words(const void* words, uint64_t bytes) {
  if (fwrite(words, 1, bytes, out) != bytes) abort();
}

UNSIGNED void launch(void) {
  uint64_t registers[33];
  capture(registers);
  const uint64_t sp = registers[31];
  write_words(registers, sizeof registers);
  write_words(&top, sizeof top);
  write_words((const void*)sp, top - sp);
}

SIGNED int signed_nested(int depth);
UNSIGNED int nested(int depth) {
  volatile char room[depth * 16 + 1];  // the frame pointer says where the frame is
  room[0] = 1;
  if (depth > 0) return signed_nested(depth - 1) + room[0];
  launch();
  return room[0];
}

SIGNED int signed_nested(int depth) {
  const int below = depth > 0 ? nested(depth - 1) : (launch(), 0);
  return below + depth;
}

SIGNED_LEAF int through(int (*callback)(int), int value) {
  const int result = value > 0 ? callback(value) : signed_nested(3);
  return result + value;
}

SIGNED int callback(int value) { return through(callback, value - 1) + 1; }

static int compare(const void* a, const void* b) {
  launch();
  return *(const int*)a - *(const int*)b;
}

static void* on_thread(void* unused) {
  pthread_attr_t attributes;
  void* low;
  size_t size;
  pthread_getattr_np(pthread_self(), &attributes);
  pthread_attr_getstack(&attributes, &low, &size);
  top = (uint64_t)low + size;
  nested(6);
  return unused;
}

int main(int argc, char** argv) {
  int values[] = {3, 1, 2, 5, 4};
  pthread_t thread;
  if (argc != 2 || (out = fopen(argv[1], "wb")) == NULL) return 2;
  top = (uint64_t)__libc_stack_end;
  launch();
  nested(20);
  signed_nested(9);
  through(callback, 5);
  qsort(values, 5, sizeof values[0], compare);
  if (pthread_create(&thread, NULL, on_thread, NULL) != 0) return 1;
  pthread_join(thread, NULL);
  return fclose(out) == 0 ? 0 : 1;
}

// SPDX-License-Identifier: Apache-2.0
//
// Facts about the calling thread, this process and the shim's own file, by raw system calls where
// glibc 2.17 has no wrapper or where its wrapper is a cancellation point.
#pragma once

#include <cstddef>
#include <cstdint>

#include <sys/types.h>

namespace gpuprof::shim {

// gettid(2), in the process's own pid namespace. Cached per thread: after the first call no
// syscall.
uint32_t thread_id();
// About how many bytes a copy of the calling thread's stack takes: from here to its outer end, at
// most GPUPROF_STACK_MAX_BYTES. That much, too, where the stack pointer is not on the thread's own
// stack (coroutines) or the end is not known. The first call of a thread other than the main one
// asks the C library, which allocates; after it a subtraction.
uint32_t stack_copy_bytes();
// Field 22 of /proc/self/stat, clock ticks since boot; 0 where /proc is not mounted.
uint64_t process_start_ticks();
// Copies the NT_GNU_BUILD_ID of the object that holds this code, zero-padded to 20 bytes. False
// (and zeroes) if it was linked without one.
bool shim_build_id(uint8_t out[20]);
// Fills `bytes` from getrandom(2) without blocking, else from the clock and the pid. Not for
// secrets.
void random_bytes(void* out, size_t bytes);

// open(O_RDONLY|O_CLOEXEC), read up to `capacity` - 1 bytes, close; NUL-terminates. Bytes read, or
// -errno. No allocation, no cancellation point.
ssize_t read_small_file(const char* path, char* out, size_t capacity);
// write(2) until done, failed, or not possible without waiting; no cancellation point, no stdio. No
// signal of it reaches the application: not SIGPIPE (a pipe without a reader), not SIGXFSZ
// (RLIMIT_FSIZE), not SIGTTOU (a terminal of another job).
void write_all(int fd, const char* text, size_t bytes);

}  // namespace gpuprof::shim

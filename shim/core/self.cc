// SPDX-License-Identifier: Apache-2.0
#include "shim/core/self.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proto/ring_abi.h"

// ld.so's: where the main thread's stack began. pthread_getattr_np would read /proc/self/maps for
// it.
extern "C" void* __libc_stack_end;

namespace gpuprof::shim {
namespace {

constexpr unsigned kGrndNonblock = 1;  // GRND_NONBLOCK; <sys/random.h> is newer than glibc 2.17

__thread uint32_t cached_thread_id;

// Outer end of the thread's stack; kNoStackTop: asked, not known. 0: not asked yet.
constexpr uintptr_t kNoStackTop = 1;
__thread uintptr_t cached_stack_top;

uintptr_t find_stack_top() {
  if (thread_id() == static_cast<uint32_t>(syscall(SYS_getpid))) {
    return reinterpret_cast<uintptr_t>(__libc_stack_end);
  }
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return kNoStackTop;
  void* low = nullptr;
  size_t bytes = 0;
  const int error = pthread_attr_getstack(&attributes, &low, &bytes);
  pthread_attr_destroy(&attributes);
  return error == 0 ? reinterpret_cast<uintptr_t>(low) + bytes : kNoStackTop;
}

struct BuildIdSearch {
  uintptr_t address;  // inside the object that is looked for
  uint8_t* out;
  bool found;
};

bool holds_address(const dl_phdr_info& info, uintptr_t address) {
  for (int i = 0; i < info.dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = info.dlpi_phdr[i];
    if (segment.p_type != PT_LOAD) continue;
    const uintptr_t start = info.dlpi_addr + segment.p_vaddr;
    if (address >= start && address - start < segment.p_memsz) return true;
  }
  return false;
}

// Walks one PT_NOTE segment. Name and descriptor are padded to 4 bytes, also in 8-byte aligned
// segments: GNU_PROPERTY notes, which are not, lie in a segment of their own.
bool build_id_in(const char* notes, size_t bytes, uint8_t* out) {
  size_t at = 0;
  while (bytes - at >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) head;
    memcpy(&head, notes + at, sizeof head);
    at += sizeof head;
    const size_t name_bytes = (size_t{head.n_namesz} + 3) & ~size_t{3};
    const size_t desc_bytes = (size_t{head.n_descsz} + 3) & ~size_t{3};
    if (name_bytes > bytes - at || desc_bytes > bytes - at - name_bytes) return false;
    if (head.n_type == NT_GNU_BUILD_ID && head.n_namesz == 4 && memcmp(notes + at, "GNU", 4) == 0) {
      const size_t copied = head.n_descsz < 20 ? head.n_descsz : 20;
      memcpy(out, notes + at + name_bytes, copied);
      return true;
    }
    at += name_bytes + desc_bytes;
  }
  return false;
}

int search_build_id(dl_phdr_info* info, size_t, void* argument) {
  auto* search = static_cast<BuildIdSearch*>(argument);
  if (!holds_address(*info, search->address)) return 0;
  for (int i = 0; i < info->dlpi_phnum && !search->found; ++i) {
    const ElfW(Phdr)& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    search->found = build_id_in(reinterpret_cast<const char*>(info->dlpi_addr + segment.p_vaddr),
                                segment.p_memsz, search->out);
  }
  return 1;
}

constexpr size_t kKernelSigsetBytes = 8;  // what the raw calls take; glibc's type is longer

// Keeps the signals that a write may raise from the calling thread, which gets them itself, and
// swallows what came. Raw calls: glibc's sigtimedwait() is a cancellation point.
class MutedWriteSignals {
 public:
  MutedWriteSignals() {
    sigset_t pending;
    sigemptyset(&pending);
    (void)syscall(SYS_rt_sigpending, &pending, kKernelSigsetBytes);
    sigemptyset(&muted_);
    sigemptyset(&swallowed_);
    constexpr int kNumbers[] = {SIGPIPE, SIGXFSZ, SIGTTOU};
    for (const int number : kNumbers) {
      sigaddset(&muted_, number);
      // One that was pending before is the application's.
      if (sigismember(&pending, number) == 0) sigaddset(&swallowed_, number);
    }
    (void)syscall(SYS_rt_sigprocmask, SIG_BLOCK, &muted_, &old_, kKernelSigsetBytes);
  }
  ~MutedWriteSignals() {
    const timespec no_wait{0, 0};
    while (syscall(SYS_rt_sigtimedwait, &swallowed_, nullptr, &no_wait, kKernelSigsetBytes) > 0) {
    }
    (void)syscall(SYS_rt_sigprocmask, SIG_SETMASK, &old_, nullptr, kKernelSigsetBytes);
  }
  MutedWriteSignals(const MutedWriteSignals&) = delete;
  MutedWriteSignals& operator=(const MutedWriteSignals&) = delete;

 private:
  sigset_t muted_;
  sigset_t swallowed_;
  sigset_t old_;
};

// Whether a line of at most 1 KiB can be written without waiting: a pipe that polls writable has a
// page of room, and regular files always poll writable.
bool writable_now(int fd) {
  pollfd wanted{fd, POLLOUT, 0};
  const timespec no_wait{0, 0};
  return syscall(SYS_ppoll, &wanted, 1, &no_wait, nullptr, kKernelSigsetBytes) == 1 &&
         wanted.revents == POLLOUT;
}

}  // namespace

uint32_t thread_id() {
  // Inherited by a forked child, where nothing of ours is emitted any more.
  if (cached_thread_id == 0) cached_thread_id = static_cast<uint32_t>(syscall(SYS_gettid));
  return cached_thread_id;
}

uint32_t stack_copy_bytes() {
  if (cached_stack_top == 0) cached_stack_top = find_stack_top();
  const auto here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  const uintptr_t depth = cached_stack_top - here;  // wraps to something large off the stack
  return depth < GPUPROF_STACK_MAX_BYTES ? static_cast<uint32_t>(depth) : GPUPROF_STACK_MAX_BYTES;
}

uint64_t process_start_ticks() {
  char text[1024];
  if (read_small_file("/proc/self/stat", text, sizeof text) <= 0) return 0;
  // The command name (field 2) may hold spaces and parentheses: fields count from the last ')'.
  const char* at = strrchr(text, ')');
  if (at == nullptr) return 0;
  ++at;
  for (int field = 3; field <= 22; ++field) {
    while (*at == ' ') ++at;
    if (field == 22) break;
    while (*at != ' ' && *at != '\0') ++at;
  }
  return strtoull(at, nullptr, 10);
}

bool shim_build_id(uint8_t out[20]) {
  memset(out, 0, 20);
  BuildIdSearch search{reinterpret_cast<uintptr_t>(&search_build_id), out, false};
  dl_iterate_phdr(search_build_id, &search);
  return search.found;
}

void random_bytes(void* out, size_t bytes) {
#ifdef SYS_getrandom
  if (syscall(SYS_getrandom, out, bytes, kGrndNonblock) == static_cast<long>(bytes)) return;
#endif
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  uint64_t state = static_cast<uint64_t>(now.tv_nsec) << 32 ^ static_cast<uint64_t>(now.tv_sec) ^
                   static_cast<uint64_t>(syscall(SYS_getpid)) << 17 ^
                   reinterpret_cast<uintptr_t>(&now);
  auto* at = static_cast<uint8_t*>(out);
  for (size_t i = 0; i < bytes; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX generator
    at[i] = static_cast<uint8_t>(state >> 56);
  }
}

ssize_t read_small_file(const char* path, char* out, size_t capacity) {
  if (capacity == 0) return -EINVAL;
  out[0] = '\0';
  const long fd = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return -errno;
  size_t used = 0;
  ssize_t failure = 0;
  while (used < capacity - 1) {
    const long got = syscall(SYS_read, fd, out + used, capacity - 1 - used);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) failure = -errno;
    if (got <= 0) break;
    used += static_cast<size_t>(got);
  }
  syscall(SYS_close, fd);
  out[used] = '\0';
  return failure != 0 ? failure : static_cast<ssize_t>(used);
}

void write_all(int fd, const char* text, size_t bytes) {
  const MutedWriteSignals muted;
  while (bytes > 0 && writable_now(fd)) {
    const long wrote = syscall(SYS_write, fd, text, bytes);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return;
    text += wrote;
    bytes -= static_cast<size_t>(wrote);
  }
}

}  // namespace gpuprof::shim

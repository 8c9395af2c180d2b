// SPDX-License-Identifier: Apache-2.0
#include "shim/core/memfd.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shim/core/owner.h"
#include "shim/core/status_mirror.h"

// Linux 3.17, 4.14 and 6.3; glibc has them from 2.27 and later only.
#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC 1u
#endif
#ifndef MFD_ALLOW_SEALING
#define MFD_ALLOW_SEALING 2u
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u
#endif
#ifndef F_ADD_SEALS
#define F_ADD_SEALS 1033
#define F_SEAL_SHRINK 2
#endif

namespace gpuprof::shim {
namespace {

// 64 KiB is the largest page size that we run on; a multiple keeps every area page-aligned there.
constexpr uint64_t kAreaAlign = 64 * 1024;
constexpr uint64_t kHeadBytes =
    (GPUPROF_MODULES_OFFSET + GPUPROF_MODULE_CAPACITY * sizeof(gpuprof_module_entry) + kAreaAlign -
     1) &
    ~(kAreaAlign - 1);
// Room for copies that exists before the first module is loaded.
constexpr uint64_t kFirstRoomBytes = 1u << 20;

constinit Channel the_channel;

int create_file() {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  // Kernels before 6.3 refuse the unknown flag with EINVAL.
  long fd = syscall(SYS_memfd_create, GPUPROF_MEMFD_NAME, kFlags | MFD_NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) fd = syscall(SYS_memfd_create, GPUPROF_MEMFD_NAME, kFlags);
  if (fd < 0) return -1;
  // Daemons close or dup2 low numbers. Where the limit forbids a high one, a low one must do.
  const long high = syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, kMemfdMinFd);
  if (high < 0) return static_cast<int>(fd);
  syscall(SYS_close, fd);
  return static_cast<int>(high);
}

void abandon_after_fork() {
  disown();
  the_channel.abandon_in_child();
}

}  // namespace

Channel& channel() { return the_channel; }

Status grow_file(int fd, uint64_t old_bytes, uint64_t size_bytes) {
  rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0) return Status::kSystem;
  if (limit.rlim_cur != RLIM_INFINITY && size_bytes > limit.rlim_cur) return Status::kLimit;
  // tmpfs undoes the range and answers EINTR when a signal is pending, e.g. from a profiling timer.
  for (int tries = 0; tries < 16; ++tries) {
    if (syscall(SYS_fallocate, fd, 0, old_bytes, size_bytes - old_bytes) == 0) return Status::kOk;
    if (errno != EINTR) break;
  }
  return errno == ENOSPC || errno == ENOMEM ? Status::kNoMemory : Status::kSystem;
}

Status Channel::create(uint64_t module_bytes) {
  if (base_.load(std::memory_order_relaxed) != nullptr) return Status::kAlready;
  const int fd = create_file();
  if (fd < 0) return errno == ENOSYS ? Status::kUnsupported : Status::kSystem;
  const auto give_up = [fd](Status why) {
    syscall(SYS_close, fd);
    return why;
  };
  module_bytes = (module_bytes + kAreaAlign - 1) & ~(kAreaAlign - 1);
  const Status head = grow_file(fd, 0, kHeadBytes);
  if (head != Status::kOk) return give_up(head);
  if (syscall(SYS_fcntl, fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0) return give_up(Status::kUnsupported);

  // Address space for all copies at once, so that growth never moves them: what lies beyond the end
  // of the file is not touched before grow_file() made it exist. Under RLIMIT_AS: the head alone.
  void* base = mmap(nullptr, kHeadBytes + module_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED && module_bytes != 0) {
    module_bytes = 0;
    base = mmap(nullptr, kHeadBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (base == MAP_FAILED) return give_up(Status::kNoMemory);
  madvise(base, kHeadBytes + module_bytes, MADV_DONTDUMP);

  uint64_t room = module_bytes < kFirstRoomBytes ? module_bytes : kFirstRoomBytes;
  // Without room for copies the rest still works; small modules are then counted as not copied.
  if (room != 0 && grow_file(fd, kHeadBytes, kHeadBytes + room) != Status::kOk) room = 0;

  auto* bytes = static_cast<char*>(base);
  if (!fd_.hold(fd)) {
    munmap(base, kHeadBytes + module_bytes);
    return give_up(Status::kSystem);
  }
  mapped_bytes_ = kHeadBytes + module_bytes;
  modules_.attach(fd_, reinterpret_cast<gpuprof_module_entry*>(bytes + GPUPROF_MODULES_OFFSET),
                  bytes + kHeadBytes, kHeadBytes, room, module_bytes);
  base_.store(bytes, std::memory_order_release);
  begin_status_mirror(*reinterpret_cast<gpuprof_status_page*>(bytes), kHeadBytes, room);
  return Status::kOk;
}

gpuprof_status_page* Channel::status_page() const {
  if (!owned()) return nullptr;
  return reinterpret_cast<gpuprof_status_page*>(base_.load(std::memory_order_acquire));
}

ControlRead Channel::read(ControlRequest* out) const {
  const char* base = owned() ? base_.load(std::memory_order_acquire) : nullptr;
  if (base == nullptr) return read_control(nullptr, out);
  return read_control(reinterpret_cast<const gpuprof_control_page*>(base + GPUPROF_CONTROL_OFFSET),
                      out);
}

void Channel::abandon_in_child() {
  modules_.detach();
  char* base = base_.exchange(nullptr, std::memory_order_acq_rel);
  if (base != nullptr) munmap(base, mapped_bytes_);
  fd_.close();
}

Status install_fork_handler() {
  return pthread_atfork(nullptr, nullptr, abandon_after_fork) == 0 ? Status::kOk
                                                                   : Status::kNoMemory;
}

}  // namespace gpuprof::shim

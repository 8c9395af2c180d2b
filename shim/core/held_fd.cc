// SPDX-License-Identifier: Apache-2.0
#include "shim/core/held_fd.h"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shim/core/thread.h"

namespace gpuprof::shim {
namespace {

// Raw: glibc exports fstat() from 2.33 on only. On the 64-bit ABIs its struct is the kernel's.
bool look(int fd, struct stat& file) {
  const KeepErrno keep_errno;
  return fd >= 0 && syscall(SYS_fstat, fd, &file) == 0;
}

}  // namespace

bool HeldFd::hold(int fd) {
  struct stat file {};
  if (!look(fd, file)) return false;
  device_ = file.st_dev;
  inode_ = file.st_ino;
  fd_.store(fd, std::memory_order_release);
  return true;
}

int HeldFd::checked() {
  const int fd = fd_.load(std::memory_order_acquire);
  if (fd < 0) return -1;
  struct stat file {};
  if (look(fd, file) && file.st_dev == device_ && file.st_ino == inode_) return fd;
  fd_.store(-1, std::memory_order_release);
  return -1;
}

void HeldFd::close() {
  const int fd = checked();
  fd_.store(-1, std::memory_order_release);
  if (fd >= 0) syscall(SYS_close, fd);
}

}  // namespace gpuprof::shim

// SPDX-License-Identifier: Apache-2.0
//
// HeldFd: a descriptor of ours in the application's table, where it may be closed behind our back
// (daemons close all numbers; so do some launchers after fork) and its number may then name a file
// of the application's.
#pragma once

#include <atomic>
#include <cstdint>

#include <sys/types.h>

namespace gpuprof::shim {

// Threads: hold() before any other; the rest from any thread. A close between a look and the use
// that follows it is not seen: that window is one system call long.
class HeldFd {
 public:
  constexpr HeldFd() = default;

  // Remembers which file (st_dev, st_ino) `fd` names now. False, and none is held, if it names
  // none.
  bool hold(int fd);
  // The number without a look; -1 if none is held, or a look found another file there.
  int number() const { return fd_.load(std::memory_order_acquire); }
  // The number if it still names that file. Otherwise -1, from now on. One fstat(2); keeps errno.
  int checked();
  // Closes the number if it still names that file; holds none afterwards. Async-signal-safe.
  void close();

 private:
  std::atomic<int> fd_{-1};
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace gpuprof::shim

// SPDX-License-Identifier: Apache-2.0
//
// Files by a path that is another process's word.
#pragma once

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>

#include "daemon/base/unique_fd.h"

namespace gpuprof {

// Opens `path` with every link, absolute ones too, resolved inside `root`, never outside. Invalid
// on failure, with errno.
[[nodiscard]] inline UniqueFd open_in_root(const UniqueFd& root, const std::string& path,
                                           uint64_t flags) {
  open_how how = {};
  how.flags = flags | O_CLOEXEC;
  how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
  return UniqueFd(
      static_cast<int>(::syscall(SYS_openat2, root.get(), path.c_str(), &how, sizeof how)));
}

// The file behind an O_PATH descriptor for reading, if it is a regular one: opening a FIFO or a
// device may have effects. Its stat is in `info`.
[[nodiscard]] inline UniqueFd reopen_regular(const UniqueFd& pinned, struct stat& info) {
  if (!pinned.valid() || ::fstat(pinned.get(), &info) != 0 || !S_ISREG(info.st_mode)) return {};
  const std::string self = "/proc/self/fd/" + std::to_string(pinned.get());
  return UniqueFd(::open(self.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
}

}  // namespace gpuprof

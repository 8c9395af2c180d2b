// SPDX-License-Identifier: Apache-2.0
//
// What a process of ours and its small helpers say to each other over a socket pair.
#pragma once

#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "daemon/base/unique_fd.h"

namespace gpuprof::cli {

// Repeats a system call that a signal interrupted.
ssize_t again(auto call) {
  ssize_t got = 0;
  do {
    got = call();
  } while (got < 0 && errno == EINTR);
  return got;
}

inline void close_all_but(std::vector<int> kept) {
  std::sort(kept.begin(), kept.end());
  unsigned from = 0;
  for (const int fd : kept) {
    const auto number = static_cast<unsigned>(fd);
    if (number > from) ::syscall(SYS_close_range, from, number - 1, 0);
    from = number + 1;
  }
  ::syscall(SYS_close_range, from, ~0u, 0);
}

// A record and the descriptor that goes with it, if any. For sendmsg() and, with expect(),
// recvmsg().
struct FdMessage {
  FdMessage(void* data, size_t bytes) : part{data, bytes} {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
  }
  void attach(int descriptor) {
    header.msg_controllen = CMSG_SPACE(sizeof descriptor);
    cmsghdr* const first = CMSG_FIRSTHDR(&header);
    first->cmsg_level = SOL_SOCKET;
    first->cmsg_type = SCM_RIGHTS;
    first->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(first), &descriptor, sizeof descriptor);
  }
  void expect() { header.msg_controllen = sizeof control; }
  UniqueFd descriptor() {
    const cmsghdr* const first = CMSG_FIRSTHDR(&header);
    if (first == nullptr || first->cmsg_type != SCM_RIGHTS) return UniqueFd();
    int out = -1;
    std::memcpy(&out, CMSG_DATA(first), sizeof out);
    return UniqueFd(out);
  }
  iovec part;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};
};

}  // namespace gpuprof::cli

// SPDX-License-Identifier: Apache-2.0
//
// ExitWatch: which of many processes have exited, for one system call a tick and not one a process.
#pragma once

#include <cstddef>
#include <vector>

#include "daemon/base/unique_fd.h"

namespace gpuprof::cli {

struct Controlled;

// Whether the process behind a pidfd has exited.
bool has_exited(const UniqueFd& pidfd);

// An epoll of pidfds. One that the kernel does not take there (fs.epoll.max_user_watches) is asked
// by itself. A target leaves when its pidfd is closed, or by forget(). One thread.
class ExitWatch {
 public:
  // `target` must outlive its pidfd.
  void add(Controlled& target);
  // `target` is known to be gone, though it has no pidfd.
  void add_gone(Controlled& target) { gone_.push_back(&target); }
  // `target` is about to go.
  void forget(const Controlled& target);
  // Those that have exited; again at each call while their pidfds are open. At most kMost and those
  // of add_gone().
  std::vector<Controlled*> take();

 private:
  static constexpr size_t kMost = 256;
  UniqueFd epoll_;
  std::vector<Controlled*> gone_;
  std::vector<Controlled*> polled_;
};

}  // namespace gpuprof::cli

// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/exit_watch.h"

#include <poll.h>
#include <sys/epoll.h>

#include <utility>

#include "daemon/cli/session.h"

namespace gpuprof::cli {

bool has_exited(const UniqueFd& pidfd) {
  pollfd poll_fd = {pidfd.get(), POLLIN, 0};
  return pidfd.valid() && ::poll(&poll_fd, 1, 0) == 1;
}

void ExitWatch::add(Controlled& target) {
  if (!epoll_.valid()) epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event interest = {.events = EPOLLIN, .data = {.ptr = &target}};
  if (!epoll_.valid() ||
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, target.pidfd.get(), &interest) != 0)
    polled_.push_back(&target);
}

void ExitWatch::forget(const Controlled& target) {
  const auto is_it = [&](const Controlled* other) { return other == &target; };
  std::erase_if(gone_, is_it);
  std::erase_if(polled_, is_it);
}

std::vector<Controlled*> ExitWatch::take() {
  std::vector<Controlled*> out = std::exchange(gone_, {});
  epoll_event ready[kMost];
  const int count = epoll_.valid() ? ::epoll_wait(epoll_.get(), ready, kMost, 0) : 0;
  for (int i = 0; i < count; ++i) out.push_back(static_cast<Controlled*>(ready[i].data.ptr));
  std::erase_if(polled_, [](const Controlled* target) { return !target->pidfd.valid(); });
  for (Controlled* target : polled_) {
    if (has_exited(target->pidfd)) out.push_back(target);
  }
  return out;
}

}  // namespace gpuprof::cli

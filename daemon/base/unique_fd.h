// SPDX-License-Identifier: Apache-2.0
//
// UniqueFd owns one file descriptor; can_open asks whether more are to be had.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>
#include <vector>

namespace gpuprof {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool valid() const { return fd_ >= 0; }
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

// 0, or the errno that opening `count` more descriptors at once would end with (EMFILE). They are
// taken for a moment: no other thread may open one meanwhile.
[[nodiscard]] inline int can_open(size_t count) {
  std::vector<UniqueFd> taken;
  taken.reserve(count);
  taken.emplace_back(::open("/", O_PATH | O_CLOEXEC));
  while (taken.back().valid() && taken.size() < count) {
    taken.emplace_back(::fcntl(taken.front().get(), F_DUPFD_CLOEXEC, 3));
  }
  return taken.back().valid() ? 0 : errno;
}

}  // namespace gpuprof

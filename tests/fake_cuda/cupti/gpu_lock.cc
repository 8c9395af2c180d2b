// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_cuda/cupti/gpu_lock.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "tests/fake_cuda/cupti/state.h"

namespace fakecuda {
namespace {

/// By device: the socket whose name says that we sample it. The kernel gives the name back when the
/// process ends, whatever ends it.
std::map<uint32_t, int>& held() {
  static auto* held = new std::map<uint32_t, int>;
  return *held;
}

}  // namespace

bool acquire_gpu(uint32_t device) {
  const char* locks = getenv("FAKE_CUDA_GPU_LOCKS");
  if (locks == nullptr || held().contains(device)) return true;
  const uint64_t gpu = driver_interface()->gpu_of(device);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;  // an abstract name: the first byte is 0
  const int length =
      snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "fake-cuda/%s/%lu", locks, gpu);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto size =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(length));
  if (bind(fd, reinterpret_cast<const sockaddr*>(&name), size) != 0) {
    close(fd);
    return false;
  }
  held()[device] = fd;
  return true;
}

void release_gpu(uint32_t device) {
  const auto found = held().find(device);
  if (found == held().end()) return;
  close(found->second);
  held().erase(found);
}

}  // namespace fakecuda

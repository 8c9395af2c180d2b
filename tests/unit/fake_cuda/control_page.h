// SPDX-License-Identifier: Apache-2.0
// The controller's side of the memfd, as plain as a test needs it.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <string>

#include "proto/memfd_layout.h"

namespace fakecuda {

class ControlPage {
 public:
  /// Waits until the process has its memfd, or has ended, or for half a minute.
  explicit ControlPage(pid_t pid) {
    for (int i = 0; i < 6000 && fd_ < 0; ++i) {
      // A zombie has no descriptor at all.
      if (!find("/proc/" + std::to_string(pid) + "/fd/")) return;
      if (fd_ < 0) usleep(5'000);
    }
  }
  ~ControlPage() {
    if (fd_ >= 0) close(fd_);
  }
  ControlPage(const ControlPage&) = delete;
  ControlPage& operator=(const ControlPage&) = delete;

  [[nodiscard]] bool opened() const { return fd_ >= 0; }

  void write(gpuprof_tier tier, uint32_t lease_ms) {
    gpuprof_control_page page{};
    page.magic = GPUPROF_CONTROL_MAGIC;
    page.abi_version = GPUPROF_ABI_VERSION;
    page.tier = tier;
    page.lease_serial = ++serial_;
    page.lease_ms = lease_ms;
    page.controller_pid = static_cast<uint32_t>(getpid());
    page.seq = ++seq_;  // odd: being written
    put(&page, sizeof page, 0);
    page.seq = ++seq_;
    put(&page.seq, sizeof page.seq, offsetof(gpuprof_control_page, seq));
  }

  [[nodiscard]] gpuprof_status_page status() const {
    gpuprof_status_page page{};
    if (pread(fd_, &page, sizeof page, 0) != sizeof page) return {};
    return page;
  }

  [[nodiscard]] std::string text() const { return status().reason_text; }

  [[nodiscard]] bool wait_for(uint32_t state) const {
    for (int ms = 0; ms < 30'000; ms += 2) {
      if (status().state == state) return true;
      usleep(2000);
    }
    return false;
  }

 private:
  /// False: the process has no descriptors.
  bool find(const std::string& directory) {
    DIR* entries = opendir(directory.c_str());
    if (entries == nullptr) return false;
    size_t count = 0;
    while (const dirent* entry = readdir(entries)) {
      ++count;
      char link[64] = {};
      const std::string path = directory + entry->d_name;
      if (readlink(path.c_str(), link, sizeof link - 1) < 0 ||
          strstr(link, "memfd:gpu-profiled") == nullptr)
        continue;
      fd_ = open(path.c_str(), O_RDWR | O_CLOEXEC);
      if (fd_ >= 0 && status().magic != GPUPROF_STATUS_MAGIC) {
        close(fd_);
        fd_ = -1;
      }
    }
    closedir(entries);
    return count > 2;  // more than . and ..
  }

  void put(const void* bytes, size_t size, size_t offset) const {
    if (pwrite(fd_, bytes, size, static_cast<off_t>(GPUPROF_CONTROL_OFFSET + offset)) < 0)
      perror("control page");
  }

  int fd_ = -1;
  uint32_t seq_ = 0;
  uint64_t serial_ = 0;
};

}  // namespace fakecuda

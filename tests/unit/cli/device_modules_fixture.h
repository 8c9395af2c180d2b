// SPDX-License-Identifier: Apache-2.0
//
// Modules of this test's own process, in a memfd as the shim keeps it.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xxhash.h>

#include <fstream>
#include <iterator>
#include <random>
#include <stop_token>
#include <thread>

#include "daemon/base/clock.h"
#include "daemon/cli/device_modules.h"
#include "daemon/target/process.h"

namespace gpuprof::cli::testing {

using std::chrono::milliseconds;

inline bool never() { return false; }

inline std::vector<std::byte> noise(size_t bytes, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> out(bytes);
  for (std::byte& byte : out) byte = static_cast<std::byte>(random());
  return out;
}

inline std::vector<std::byte> cubin_bytes() {
  std::ifstream file(CUBIN_FIXTURES "/inline_chain.sm_90.cubin", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

inline uint64_t key_of(std::span<const std::byte> image) {
  return XXH3_64bits(image.data(), image.size());
}

class DeviceModulesTest : public ::testing::Test {
 protected:
  static constexpr off_t kCopies =
      GPUPROF_MODULES_OFFSET + off_t{GPUPROF_MODULE_CAPACITY} * sizeof(gpuprof_module_entry);

  void SetUp() override {
    id_ = *target::process_id(static_cast<uint32_t>(::getpid()));
    memfd_.reset(::memfd_create(GPUPROF_MEMFD_NAME, MFD_CLOEXEC));
    ASSERT_EQ(::ftruncate(memfd_.get(), kCopies + (1 << 20)), 0);
    modules_.enable();
  }
  [[nodiscard]] UniqueFd memfd() const { return UniqueFd(::dup(memfd_.get())); }
  void append(const gpuprof_module_entry& entry) {
    EXPECT_EQ(::pwrite(memfd_.get(), &entry, sizeof entry,
                       GPUPROF_MODULES_OFFSET + off_t{count_} * sizeof entry),
              ssize_t{sizeof entry});
    ++count_;
    EXPECT_EQ(
        ::pwrite(memfd_.get(), &count_, sizeof count_, offsetof(gpuprof_status_page, module_count)),
        ssize_t{sizeof count_});
  }
  uint64_t load(std::span<const std::byte> image, bool copied = false) {
    gpuprof_module_entry entry = {};
    entry.hash = key_of(image);
    entry.address = reinterpret_cast<uintptr_t>(image.data());
    entry.size_bytes = image.size();
    entry.state = GPUPROF_MODULE_PRESENT;
    if (copied) {
      entry.state = GPUPROF_MODULE_COPIED;
      entry.address = 0;
      entry.copy_offset = static_cast<uint64_t>(kCopies);
      EXPECT_EQ(::pwrite(memfd_.get(), image.data(), image.size(), kCopies),
                static_cast<ssize_t>(image.size()));
    }
    append(entry);
    return entry.hash;
  }
  static gpuprof_module_v1 event(uint64_t key, uint64_t size, gpuprof_module_event what) {
    gpuprof_module_v1 out = {};
    out.hash = key;
    out.size_bytes = size;
    out.event = what;
    return out;
  }
  std::string missing(uint64_t key) { return modules_.module(id_, key).missing; }

  ProcessId id_;
  UniqueFd memfd_;
  uint32_t count_ = 0;
  DeviceModules modules_;
};

// Memory whose first touch nobody answers, unless who has it does: what a hostile target can set
// up.
class Unanswered {
 public:
  static constexpr size_t kBytes = 1 << 20;
  explicit Unanswered(size_t bytes = kBytes)
      : bytes_(bytes),
        fault_fd_(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK))) {
    memory_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uffdio_api api = {};
    api.api = UFFD_API;
    EXPECT_EQ(::ioctl(fault_fd_.get(), UFFDIO_API, &api), 0);
    uffdio_register area = {};
    area.range = {reinterpret_cast<uintptr_t>(memory_), bytes_};
    area.mode = UFFDIO_REGISTER_MODE_MISSING;
    EXPECT_EQ(::ioctl(fault_fd_.get(), UFFDIO_REGISTER, &area), 0);
  }
  ~Unanswered() {
    fault_fd_.reset();  // lets the faulting thread go
    ::munmap(memory_, bytes_);
  }
  [[nodiscard]] uint64_t address() const { return reinterpret_cast<uintptr_t>(memory_); }
  [[nodiscard]] int fault_fd() const { return fault_fd_.get(); }

 private:
  size_t bytes_;
  UniqueFd fault_fd_;
  void* memory_ = nullptr;
};

}  // namespace gpuprof::cli::testing

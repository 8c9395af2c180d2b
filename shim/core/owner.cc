// SPDX-License-Identifier: Apache-2.0
#include "shim/core/owner.h"

#include <atomic>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

namespace gpuprof::shim {
namespace {

// Stands in for the page before own_process() and after disown(): never 1.
constinit std::atomic<uint32_t> not_owned{0};
// Serves as the page where the kernel refused to map or to wipe one.
constinit std::atomic<uint32_t> plain_flag{0};
constinit std::atomic<std::atomic<uint32_t>*> owned_flag{&not_owned};
constinit std::atomic<pid_t> owner{0};

pid_t caller_pid() { return static_cast<pid_t>(syscall(SYS_getpid)); }

std::atomic<uint32_t>* wiped_on_fork() {
  const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* page = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return nullptr;
  if (madvise(page, bytes, MADV_WIPEONFORK) != 0) {
    munmap(page, bytes);
    return nullptr;
  }
  return reinterpret_cast<std::atomic<uint32_t>*>(page);
}

}  // namespace

Status own_process() {
  if (owner.load(std::memory_order_relaxed) != 0) return Status::kAlready;
  std::atomic<uint32_t>* flag = wiped_on_fork();
  if (flag == nullptr) flag = &plain_flag;
  flag->store(1, std::memory_order_relaxed);
  owner.store(caller_pid(), std::memory_order_relaxed);
  owned_flag.store(flag, std::memory_order_release);
  return Status::kOk;
}

bool owned() {
  return owned_flag.load(std::memory_order_acquire)->load(std::memory_order_relaxed) == 1;
}

bool owned_by_caller() { return owned() && caller_pid() == owner.load(std::memory_order_relaxed); }

void disown() { owned_flag.store(&not_owned, std::memory_order_release); }

pid_t owner_pid() { return owner.load(std::memory_order_relaxed); }

}  // namespace gpuprof::shim

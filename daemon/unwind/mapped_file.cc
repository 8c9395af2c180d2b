// SPDX-License-Identifier: Apache-2.0
#include "daemon/unwind/mapped_file.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>

namespace gpuprof::unwind {
namespace {

// What the signal handler reads, hence global and lock-free. `start` is 0 in a free slot and is
// written last on claim, first on release.
struct Slot {
  std::atomic<uintptr_t> start{0};
  std::atomic<uintptr_t> end{0};
  std::atomic<bool> taken{false};
};
Slot slots[MappedFile::kMaxFiles];
struct sigaction previous_action;
uintptr_t page_size = 4096;  // set before the handler is installed

void on_sigbus(int signo, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (const Slot& slot : slots) {
    const uintptr_t start = slot.start.load(std::memory_order_acquire);
    if (start == 0 || address < start || address >= slot.end.load(std::memory_order_acquire)) {
      continue;
    }
    void* page = reinterpret_cast<void*>(address & ~(page_size - 1));
    const int saved_errno = errno;
    void* zeros = mmap(page, page_size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    errno = saved_errno;
    if (zeros == page) return;
    break;
  }
  if ((previous_action.sa_flags & SA_SIGINFO) != 0 && previous_action.sa_sigaction != nullptr) {
    previous_action.sa_sigaction(signo, info, context);
  } else if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
    previous_action.sa_handler(signo);
  } else {
    signal(SIGBUS, SIG_DFL);  // the access is repeated and ends the process as it would have
  }
}

void install_handler() {
  static std::once_flag once;
  std::call_once(once, [] {
    page_size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    struct sigaction action = {};
    action.sa_sigaction = on_sigbus;
    action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &previous_action);
  });
}

size_t claim_slot() {
  for (size_t i = 0; i < MappedFile::kMaxFiles; ++i) {
    if (!slots[i].taken.exchange(true, std::memory_order_acq_rel)) return i;
  }
  return MappedFile::kMaxFiles;
}

}  // namespace

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    reset();
    bytes_ = std::exchange(other.bytes_, {});
    slot_ = std::exchange(other.slot_, kMaxFiles);
  }
  return *this;
}

Result<MappedFile> MappedFile::map(int fd) {
  struct stat st = {};
  if (fstat(fd, &st) != 0) return fail_errno(Code::kIo, errno, "fstat of a mapped file");
  if (!S_ISREG(st.st_mode)) return fail(Code::kCorrupt, "not a regular file");
  const auto size = static_cast<uint64_t>(st.st_size);
  if (size == 0 || size > kMaxBytes) return fail(Code::kCorrupt, "file is empty or too large");
  install_handler();
  MappedFile file;
  file.slot_ = claim_slot();
  if (file.slot_ == kMaxFiles) return fail(Code::kUnavailable, "too many mapped files");
  void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
  if (at == MAP_FAILED) {
    const int err = errno;
    return fail_errno(Code::kIo, err, "mmap of a target's file");
  }
  file.bytes_ = {static_cast<uint8_t*>(at), static_cast<size_t>(size)};
  const auto start = reinterpret_cast<uintptr_t>(at);
  slots[file.slot_].end.store(start + size, std::memory_order_release);
  slots[file.slot_].start.store(start, std::memory_order_release);
  return file;
}

void MappedFile::release(uint64_t begin, uint64_t end) {
  end = std::min<uint64_t>(end, bytes_.size());
  begin = (begin + page_size - 1) & ~uint64_t{page_size - 1};
  end &= ~uint64_t{page_size - 1};
  if (begin < end) madvise(bytes_.data() + begin, end - begin, MADV_DONTNEED);
}

void MappedFile::reset() {
  if (slot_ != kMaxFiles) slots[slot_].start.store(0, std::memory_order_release);
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
  if (slot_ != kMaxFiles) slots[slot_].taken.store(false, std::memory_order_release);
  bytes_ = {};
  slot_ = kMaxFiles;
}

}  // namespace gpuprof::unwind

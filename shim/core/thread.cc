// SPDX-License-Identifier: Apache-2.0
#include "shim/core/thread.h"

#include <climits>
#include <csignal>
#include <ctime>

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace gpuprof::shim {
namespace {

constexpr size_t kStackBytes = 256 * 1024;
constexpr size_t kLargerStackBytes = 2 * 1024 * 1024;

// One thread a process: it reads this once, before start_service_thread() is called again, if ever.
struct Start {
  void (*run)(void*);
  void* argument;
};
constinit Start start{};

void* thread_main(void*) {
  int old_state;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old_state);
  pthread_setname_np(pthread_self(), "gpu-profiled");
  start.run(start.argument);
  return nullptr;
}

// Else a thread made by a real-time one competes with it. Asked for only then: setting a policy is
// a system call that sandboxes may forbid.
bool caller_is_real_time() {
  int policy = SCHED_OTHER;
  sched_param parameters;
  return pthread_getschedparam(pthread_self(), &policy, &parameters) == 0 &&
         (policy == SCHED_FIFO || policy == SCHED_RR);
}

int create_thread(size_t stack_bytes, bool ordinary) {
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return ENOMEM;
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  int error = pthread_attr_setstacksize(&attributes, stack_bytes);
  if (ordinary) {
    const sched_param priority{};  // 0, the only one of SCHED_OTHER
    pthread_attr_setinheritsched(&attributes, PTHREAD_EXPLICIT_SCHED);
    pthread_attr_setschedpolicy(&attributes, SCHED_OTHER);
    pthread_attr_setschedparam(&attributes, &priority);
  }
  pthread_t thread;
  if (error == 0) error = pthread_create(&thread, &attributes, thread_main, nullptr);
  pthread_attr_destroy(&attributes);
  return error;
}

long futex(const std::atomic<uint32_t>& word, int operation, uint32_t value,
           const timespec* timeout) {
  static_assert(sizeof word == sizeof(uint32_t));
  return syscall(SYS_futex, &word, operation | FUTEX_PRIVATE_FLAG, value, timeout, nullptr, 0);
}

}  // namespace

Status start_service_thread(void (*run)(void*), void* argument) {
  start = Start{run, argument};
  // glibc carves static TLS out of the stack; from 2.34 on it says how much that is.
  const long minimum = sysconf(_SC_THREAD_STACK_MIN);
  const size_t overhead = minimum > 0 ? static_cast<size_t>(minimum) : 0;
  sigset_t all, old;
  sigfillset(&all);
  if (pthread_sigmask(SIG_SETMASK, &all, &old) != 0) return Status::kSystem;
  bool ordinary = caller_is_real_time();
  int error = create_thread(kStackBytes + overhead, ordinary);
  if (error == EPERM && ordinary) {
    ordinary = false;
    error = create_thread(kStackBytes + overhead, ordinary);
  }
  if (error == EINVAL) error = create_thread(kLargerStackBytes + overhead, ordinary);
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  if (error == 0) return Status::kOk;
  return error == EAGAIN ? Status::kLimit : Status::kNoMemory;
}

bool futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, uint64_t timeout_ns) {
  timespec timeout;
  timeout.tv_sec = static_cast<time_t>(timeout_ns / 1'000'000'000u);
  timeout.tv_nsec = static_cast<long>(timeout_ns % 1'000'000'000u);
  // EINTR counts as woken: the caller looks again.
  return futex(word, FUTEX_WAIT, expected, timeout_ns == UINT64_MAX ? nullptr : &timeout) == 0 ||
         errno != ETIMEDOUT;
}

void futex_wake(std::atomic<uint32_t>& word, int waiters) {
  futex(word, FUTEX_WAKE, static_cast<uint32_t>(waiters), nullptr);
}

NoCancel::NoCancel() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old_state_); }

NoCancel::~NoCancel() {
  int ignored;
  pthread_setcancelstate(old_state_, &ignored);
}

}  // namespace gpuprof::shim

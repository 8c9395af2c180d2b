// SPDX-License-Identifier: Apache-2.0
// The frame around every API call: correlation ids, callbacks, refusals, and the interface that the
// fake libcupti binds to.
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include "tests/fake_cuda/driver/state.h"

namespace fakecuda {
namespace {

thread_local ThreadState tls;

/// One byte that reads 0 in every forked child, raw clone included (MADV_WIPEONFORK, Linux 4.14);
/// getpid() would be a system call on each launch.
const volatile char* alive_page() {
  static const volatile char* page = [] {
    void* mapped = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(mapped, 4096, MADV_WIPEONFORK);
    *static_cast<char*>(mapped) = 1;
    return static_cast<const volatile char*>(mapped);
  }();
  return page;
}

bool forked() { return *alive_page() == 0; }

/// Two rules of thumb for "while the app launches": one is in progress, or one ended a moment ago.
bool launching() {
  constexpr uint64_t kRecentNs = 50'000'000;
  if (driver().launches_in_progress.load() != 0) return true;
  const uint64_t last = driver().last_launch_ns.load();
  return last != 0 && monotonic_now() - last < kRecentNs;
}

void on_cancelled(void*) {
#ifdef __SANITIZE_ADDRESS__
  __asan_handle_no_return();  // the frames that were unwound still count as its red zones
#endif
  fatal("cancelled-in-callback", "the callback had a cancellation point and did not mask it");
}

bool is_api(Inside inside) { return inside == Inside::kNothing || inside == Inside::kInjection; }

}  // namespace

Driver& driver() {
  static auto* instance = new Driver;
  return *instance;
}

ThreadState& thread_state() { return tls; }

Interface& interface() {
  static auto* instance = [] {
    auto* fresh = new Interface;
    fresh->thread = thread_state;
    fresh->setting = setting;
    fresh->gpu_of = gpu_of;
    fresh->consume = consume;
    fresh->failure = failure;
    fresh->violation = violation;
    fresh->fatal = fatal;
    fresh->now = fake_now;
    fresh->launching = launching;
    fresh->forked = forked;
    fresh->context_id = [](CUcontext context) {
      return context ? reinterpret_cast<Context*>(context)->id : 0;
    };
    fresh->device_id = [](CUcontext context) {
      return context ? reinterpret_cast<Context*>(context)->device : 0;
    };
    fresh->stream_id = [](CUcontext context, CUstream stream, bool per_thread) {
      auto* in = context ? reinterpret_cast<Context*>(context) : current_context();
      return in ? stream_of(in, stream, per_thread)->id : 0;
    };
    fresh->initialised = [] { return driver().initialised.load(); };
    alive_page();
    return fresh;
  }();
  return *instance;
}

Api::Api(CUpti_CallbackDomain domain, uint32_t cbid, const char* name, const void* params,
         const char* symbol, bool launch, bool capturing) {
  ThreadState& thread = tls;
  if (!is_api(thread.inside)) {
    violation("cuda-in-callback", "%s called from a CUPTI callback", name);
  }
  if (thread.api_depth++ == 0) {
    thread.correlation = thread.stuck != 0
                             ? thread.stuck
                             : driver().correlation.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  call_.domain = domain;
  call_.cbid = cbid;
  call_.name = name;
  call_.params = params;
  call_.symbol = symbol;
  call_.launch = launch;
  call_.context = thread.context;
  call_.context_id = interface().context_id(thread.context);
  call_.correlation = thread.correlation;
  call_.result = &result_;
  hooks_ = interface().hooks.load(std::memory_order_acquire);
  thread.capturing = capturing;
  if (launch) {
    driver().launches_in_progress.fetch_add(1);
    if (domain == CUPTI_CB_DOMAIN_DRIVER_API)
      driver().launches.fetch_add(1, std::memory_order_relaxed);
  }
  callback(CUPTI_API_ENTER);
  if (!driver().initialised.load() || forked()) result_ = CUDA_ERROR_NOT_INITIALIZED;
  if (launch && result_ == 0) {
    if (const uint64_t every = setting(Key::kLaunchFailEvery)) {
      if (driver().launches.load() % every == 0) result_ = CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    }
  }
}

void Api::callback(CUpti_ApiCallbackSite site) {
  if (hooks_ == nullptr) return;
  ThreadState& thread = tls;
  const Inside before = thread.inside;
  if (site == CUPTI_API_ENTER) {
    thread.inside = call_.launch ? Inside::kLaunchEnter : Inside::kApiEnter;
  } else {
    thread.inside = call_.launch ? Inside::kLaunchExit : Inside::kApiExit;
  }
  const uint64_t cancel_at = setting(Key::kCancelAt);
  if (cancel_at != 0 && call_.launch && driver().launches.load() >= cancel_at) {
    static std::atomic<bool> done{false};
    if (!done.exchange(true)) pthread_cancel(pthread_self());
  }
  pthread_cleanup_push(on_cancelled, nullptr);
  hooks_->api(call_, site);
  pthread_cleanup_pop(0);
  thread.inside = before;
}

int Api::finish(int result) {
  if (result_ == 0) result_ = result;
  const int answer = result_;
  callback(CUPTI_API_EXIT);
  finished_ = true;
  if (call_.launch) {
    driver().last_launch_ns.store(monotonic_now(), std::memory_order_relaxed);
    driver().launches_in_progress.fetch_sub(1);
  }
  tls.capturing = false;
  // The driver itself is a cancellation point here, once the outermost call is through.
  if (--tls.api_depth == 0 && setting(Key::kCancelAt) != 0) pthread_testcancel();
  return answer;
}

Api::~Api() {
  if (!finished_) violation("fake-bug", "%s left without its EXIT callback", call_.name);
}

}  // namespace fakecuda

FAKE_EXPORT fakecuda::Interface* fake_cuda_interface(void) { return &fakecuda::interface(); }

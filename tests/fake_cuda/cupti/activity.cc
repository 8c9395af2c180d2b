// SPDX-License-Identifier: Apache-2.0
// Activity kinds, buffers and their delivery.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "tests/fake_cuda/cupti/state.h"

namespace fakecuda {
namespace {

constexpr uint32_t kNullBufferIsSafe = 27;  // CUDA 12.9
constexpr uint32_t kBesidePcSampling = 27;
constexpr uint64_t kForbidden =
    uint64_t{1} << CUPTI_ACTIVITY_KIND_KERNEL | uint64_t{1} << CUPTI_ACTIVITY_KIND_RUNTIME |
    uint64_t{1} << CUPTI_ACTIVITY_KIND_DRIVER | uint64_t{1} << CUPTI_ACTIVITY_KIND_GRAPH_TRACE;

std::atomic<bool> worker_started{false};
std::atomic<bool> work_waits{false};
std::mutex worker_mutex;
pthread_cond_t worker_wakes = PTHREAD_COND_INITIALIZER;
pthread_mutex_t worker_lock = PTHREAD_MUTEX_INITIALIZER;

void sleep_ms(uint64_t ms) {
  timespec pause{static_cast<time_t>(ms / 1000), static_cast<long>(ms % 1000 * 1'000'000)};
  nanosleep(&pause, nullptr);
}

void wake_worker() {
  if (work_waits.exchange(true)) return;
  pthread_mutex_lock(&worker_lock);
  pthread_cond_signal(&worker_wakes);
  pthread_mutex_unlock(&worker_lock);
}

void count_dropped(uint64_t records) {
  cupti().dropped_since_asked.fetch_add(records);
  driver_interface()->totals.dropped.fetch_add(records);
}

/// Asks the client for a buffer, with producer.mutex held. False: there is none.
bool request_buffer(Producer& producer) {
  Interface* driver = driver_interface();
  auto* requested = cupti().requested.load();
  if (requested == nullptr) return false;
  ThreadState& thread = driver->thread();
  const Inside before = thread.inside;
  thread.inside = Inside::kBufferRequested;
  Buffer buffer{};
  size_t most = 0;
  requested(&buffer.data, &buffer.capacity, &most);
  thread.inside = before;
  driver->totals.buffers_requested.fetch_add(1);
  if (buffer.data == nullptr || buffer.capacity < largest_stride()) {
    if (api_version() < kNullBufferIsSafe) {
      driver->violation("null-buffer", "bufferRequested gave none; CUPTI below API 27 crashes");
    }
    return false;
  }
  if (reinterpret_cast<uintptr_t>(buffer.data) % 8 != 0) {
    driver->violation("bad-buffer", "buffer %p is not 8-byte aligned",
                      static_cast<void*>(buffer.data));
    return false;
  }
  {
    std::lock_guard lock(cupti().ready_mutex);
    auto& out = cupti().outstanding;
    if (std::find(out.begin(), out.end(), buffer.data) != out.end()) {
      driver->violation("buffer-aliased", "buffer %p handed over twice",
                        static_cast<void*>(buffer.data));
    }
    out.push_back(buffer.data);
  }
  const size_t fits = buffer.capacity / largest_stride();
  buffer.records_left = most != 0 && most < fits ? most : fits;
  producer.slots += buffer.records_left;
  producer.buffers.push_back(buffer);
  return true;
}

void retire_front(Producer& producer) {
  Buffer buffer = producer.buffers.front();
  producer.buffers.pop_front();
  producer.slots -= buffer.records_left;
  buffer.ready_ns = driver_interface()->now();
  std::lock_guard lock(cupti().ready_mutex);
  cupti().ready.push_back(buffer);
}

bool every(Key key, uint64_t index) {
  const uint64_t n = driver_interface()->setting(key);
  return n != 0 && index % n == 0;
}

void put_record(Producer& producer, const Pending& pending, bool complete) {
  static std::atomic<uint64_t> written{0};
  CuptiTotals& totals = driver_interface()->totals;
  if (producer.buffers.empty() && !request_buffer(producer)) return count_dropped(1);
  const uint64_t index = written.fetch_add(1) + 1;
  uint64_t start_ns = pending.work.start_ns;
  uint64_t end_ns = pending.work.end_ns;
  if (!complete) {
    start_ns = end_ns = 0;
    totals.incomplete.fetch_add(1);
  } else if (every(Key::kZeroTimesEvery, index)) {
    start_ns = end_ns = 0;
    totals.zero_times.fetch_add(1);
  } else if (every(Key::kReverseTimesEvery, index)) {
    std::swap(start_ns, end_ns);
    totals.reversed.fetch_add(1);
  }
  Buffer& buffer = producer.buffers.front();
  write_record(buffer.data + buffer.used, pending.work, start_ns, end_ns);
  buffer.used += record_stride(pending.work.kind);
  --producer.slots;
  if (--buffer.records_left == 0) retire_front(producer);
}

/// Moves what has ended on the GPU into buffers. Forced: the rest too, without times.
void materialise(Producer& producer, bool forced) {
  const uint64_t now = driver_interface()->now();
  size_t kept = 0;
  for (size_t i = 0; i < producer.pending.size(); ++i) {
    const Pending& pending = producer.pending[i];
    const bool complete = pending.instant || pending.work.end_ns <= now;
    if (complete || forced) {
      put_record(producer, pending, complete);
    } else {
      if (kept != i) producer.pending[kept] = pending;
      ++kept;
    }
  }
  producer.pending.resize(kept);
}

std::vector<Producer*> all_producers() {
  std::lock_guard lock(cupti().producers_mutex);
  return cupti().producers;
}

void deliver_one(const Buffer& buffer) {
  Interface* driver = driver_interface();
  {
    std::lock_guard lock(cupti().ready_mutex);
    auto& out = cupti().outstanding;
    const auto it = std::find(out.begin(), out.end(), buffer.data);
    if (it != out.end()) out.erase(it);
  }
  size_t records = 0;
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer.data, buffer.used, &record) == CUPTI_SUCCESS) ++records;
  driver->totals.buffers_completed.fetch_add(1);
  driver->totals.delivered.fetch_add(records);
  ThreadState& thread = driver->thread();
  const Inside before = thread.inside;
  thread.inside = Inside::kBufferCompleted;
  auto* completed = cupti().completed.load();
  if (completed != nullptr) completed(nullptr, 0, buffer.data, buffer.capacity, buffer.used);
  thread.inside = before;
}

/// Gives ready buffers back on the calling thread, one thread at a time.
void deliver(bool late_too) {
  std::lock_guard delivery(cupti().delivery_mutex);
  const bool reorder = driver_interface()->setting(Key::kReorder) != 0;
  const uint64_t now = driver_interface()->now();
  // As it is set now: what was made late before may be let go.
  const uint64_t late_ns = driver_interface()->setting(Key::kLateMs) * 1'000'000;
  for (;;) {
    Buffer buffer{};
    {
      std::lock_guard lock(cupti().ready_mutex);
      auto& ready = cupti().ready;
      if (ready.empty()) return;
      buffer = reorder ? ready.back() : ready.front();
      if (!late_too && buffer.ready_ns + late_ns > now) return;
      reorder ? ready.pop_back() : ready.pop_front();
    }
    deliver_one(buffer);
  }
}

bool anything_ready() {
  std::lock_guard lock(cupti().ready_mutex);
  return !cupti().ready.empty();
}

void* worker_main(void*) {
  Interface* driver = driver_interface();
  for (;;) {
    const uint64_t period_ms = driver->setting(Key::kWorkerMs);
    timespec until{};
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += static_cast<long>(period_ms % 1000 * 1'000'000);
    until.tv_sec += static_cast<time_t>(period_ms / 1000) + until.tv_nsec / 1'000'000'000;
    until.tv_nsec %= 1'000'000'000;
    pthread_mutex_lock(&worker_lock);
    if (!work_waits.load()) pthread_cond_timedwait(&worker_wakes, &worker_lock, &until);
    work_waits.store(false);
    pthread_mutex_unlock(&worker_lock);
    for (Producer* producer : all_producers()) {
      std::lock_guard lock(producer->mutex);
      if (!producer->pending.empty()) materialise(*producer, false);
    }
    deliver(false);
  }
  return nullptr;
}

void start_worker() {
  std::lock_guard lock(worker_mutex);
  if (worker_started.exchange(true)) return;
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread{};
  pthread_create(&thread, nullptr, worker_main, nullptr);
  pthread_setname_np(thread, "fake-cupti");
  pthread_detach(thread);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Producer& producer_of_thread() {
  if (!cupti().per_thread.load(std::memory_order_relaxed)) return cupti().shared;
  ThreadState& thread = driver_interface()->thread();
  if (thread.producer == nullptr) {
    auto* fresh = new Producer;
    std::lock_guard lock(cupti().producers_mutex);
    cupti().producers.push_back(fresh);
    thread.producer = fresh;
  }
  return *static_cast<Producer*>(thread.producer);
}

/// The mode that catches a client which holds a lock across FlushAll that its callbacks take: waits
/// until a callback of another thread has returned.
void wait_for_callback() {
  Interface* driver = driver_interface();
  const Inside mine = driver->thread().inside;
  const uint64_t own = mine == Inside::kNothing || mine == Inside::kInjection ? 0 : 1;
  const uint64_t returned = cupti().callbacks_returned.load();
  for (int ms = 0; ms < 3000; ++ms) {
    if (cupti().callbacks_returned.load() != returned) return;
    const bool in_flight =
        cupti().callbacks_started.load() - cupti().callbacks_returned.load() > own;
    if (!in_flight && (!driver->launching() || ms > 100)) return;
    sleep_ms(1);
  }
  driver->fatal("flush-deadlock", "FlushAll waits for a callback that never returns");
}

[[noreturn]] void hang() {
  for (;;) sleep_ms(1000);
}

void flush_producers(bool forced) {
  for (Producer* producer : all_producers()) {
    std::lock_guard lock(producer->mutex);
    materialise(*producer, forced);
    while (!producer->buffers.empty() && (forced || producer->buffers.front().used != 0)) {
      retire_front(*producer);
    }
  }
}

CUptiResult toggle(const char* name, CUpti_ActivityKind kind, bool enable) {
  Interface* driver = driver_interface();
  if (!require_subscriber(name)) return fail(CUPTI_ERROR_NOT_INITIALIZED);
  if (kind <= 0 || kind >= 64) return fail(CUPTI_ERROR_INVALID_KIND);
  const Switching switching;
  const uint64_t bit = uint64_t{1} << kind;
  if (enable && (bit & kForbidden) != 0) driver->violation("forbidden-kind", "%s(%d)", name, kind);
  if (!safe_place(true)) {
    driver->violation("activity-thread",
                      "%s(%d) outside a launch-EXIT callback while the app launches", name, kind);
  }
  if (driver->thread().capturing) {
    driver->violation("captured", "%s(%d) in a launch whose stream is being captured", name, kind);
  }
  if (const uint32_t code =
          enable ? driver->failure(Key::kEnableFail, 0, static_cast<uint32_t>(kind)) : 0) {
    return fail(static_cast<CUptiResult>(code));
  }
  if (enable && kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL && cupti().pc_enabled.load() != 0 &&
      (driver->launching() || api_version() < kBesidePcSampling)) {
    return fail(CUPTI_ERROR_NOT_COMPATIBLE);  // kernel activity must come first, mid-run
  }
  if (enable) {
    start_worker();
    cupti().kinds.fetch_or(bit);
    cupti().was_active.store(true);
    driver->totals.enables.fetch_add(1);
  } else {
    cupti().kinds.fetch_and(~bit);
    driver->totals.disables.fetch_add(1);
  }
  return CUPTI_SUCCESS;
}

}  // namespace

bool queue_record(const Execution& execution) {
  static std::atomic<uint64_t> queued{0};
  if ((cupti().kinds.load(std::memory_order_relaxed) >> execution.kind & 1) == 0) return false;
  if (cupti().deaf.load()) return false;
  Interface* driver = driver_interface();
  driver->totals.queued.fetch_add(1, std::memory_order_relaxed);
  const uint64_t lost_device = driver->setting(Key::kDropOnDevice);
  if ((lost_device != 0 && lost_device == execution.device_id) ||
      every(Key::kDropEvery, queued.fetch_add(1, std::memory_order_relaxed) + 1)) {
    count_dropped(1);
    return true;
  }
  Producer& producer = producer_of_thread();
  bool wake = false;
  {
    std::lock_guard lock(producer.mutex);
    if (producer.slots <= producer.pending.size() && driver->setting(Key::kRequestOnWorker) == 0 &&
        !request_buffer(producer)) {
      count_dropped(1);
      return true;
    }
    producer.pending.push_back({execution, driver->setting(Key::kInstant) != 0});
    wake = producer.slots == producer.pending.size();
  }
  if (wake) wake_worker();
  return true;
}

}  // namespace fakecuda

using namespace fakecuda;

FAKE_EXPORT CUptiResult cuptiActivityRegisterCallbacks(
    CUpti_BuffersCallbackRequestFunc requested, CUpti_BuffersCallbackCompleteFunc completed) {
  if (driver_interface() == nullptr) return fail(CUPTI_ERROR_UNKNOWN);
  Entry entry("cuptiActivityRegisterCallbacks");
  if (!require_subscriber("cuptiActivityRegisterCallbacks"))
    return fail(CUPTI_ERROR_NOT_INITIALIZED);
  if (requested == nullptr || completed == nullptr) return fail(CUPTI_ERROR_INVALID_PARAMETER);
  if (const uint64_t code = driver_interface()->setting(Key::kRegisterFail))
    return fail(static_cast<CUptiResult>(code));
  cupti().requested.store(requested);
  cupti().completed.store(completed);
  return CUPTI_SUCCESS;
}

FAKE_EXPORT CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
  if (driver_interface() == nullptr) return fail(CUPTI_ERROR_UNKNOWN);
  Entry entry("cuptiActivityEnable");
  return toggle("cuptiActivityEnable", kind, true);
}

FAKE_EXPORT CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) {
  if (driver_interface() == nullptr) return fail(CUPTI_ERROR_UNKNOWN);
  Entry entry("cuptiActivityDisable");
  return toggle("cuptiActivityDisable", kind, false);
}

FAKE_EXPORT CUptiResult cuptiActivityFlushAll(uint32_t flag) {
  Interface* driver = driver_interface();
  if (driver == nullptr) return fail(CUPTI_ERROR_UNKNOWN);
  Entry entry("cuptiActivityFlushAll");
  const Inside inside = driver->thread().inside;
  if (inside == Inside::kResource || inside == Inside::kContextCreated ||
      inside == Inside::kBufferRequested || inside == Inside::kBufferCompleted ||
      inside == Inside::kHash) {
    driver->violation("flush-in-callback", "FlushAll from a resource or buffer callback");
  }
  if (!require_subscriber("cuptiActivityFlushAll")) return fail(CUPTI_ERROR_NOT_INITIALIZED);
  driver->totals.flushes.fetch_add(1);
  const uint64_t calls = cupti().flush_calls.fetch_add(1) + 1;
  const uint64_t hang_from = driver->setting(Key::kFlushHang);
  if (hang_from != 0 && calls >= hang_from) hang();
  if (driver->setting(Key::kFlushWaits) != 0) wait_for_callback();
  const bool forced = (flag & CUPTI_ACTIVITY_FLAG_FLUSH_FORCED) != 0;
  flush_producers(forced);
  if (driver->setting(Key::kCompleteOnFlusher) != 0 || !worker_started.load()) {
    deliver(forced);
    return CUPTI_SUCCESS;
  }
  const uint64_t patience_ms = driver->setting(Key::kLateMs) + 1000;
  for (uint64_t ms = 0; anything_ready() && ms < patience_ms; ++ms) {
    wake_worker();
    sleep_ms(1);
  }
  std::lock_guard last(cupti().delivery_mutex);  // the worker's last bufferCompleted has returned
  return CUPTI_SUCCESS;
}

FAKE_EXPORT CUptiResult cuptiActivityFlushPeriod(uint32_t) {
  if (driver_interface() == nullptr) return fail(CUPTI_ERROR_UNKNOWN);
  Entry entry("cuptiActivityFlushPeriod");
  return CUPTI_SUCCESS;  // full buffers come back by the worker anyway
}

// Exempt from the guard, like GetNextRecord.
FAKE_EXPORT CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t* dropped) {
  *dropped = cupti().dropped_since_asked.exchange(0);
  return CUPTI_SUCCESS;
}

FAKE_EXPORT CUptiResult cuptiActivitySetAttribute(CUpti_ActivityAttribute attribute, size_t* size,
                                                  void* value) {
  if (driver_interface() == nullptr) return fail(CUPTI_ERROR_UNKNOWN);
  Entry entry("cuptiActivitySetAttribute");
  if (!require_subscriber("cuptiActivitySetAttribute")) return fail(CUPTI_ERROR_NOT_INITIALIZED);
  if (attribute == CUPTI_ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER) {
    if (api_version() < 21) return fail(CUPTI_ERROR_INVALID_PARAMETER);
    if (size == nullptr || value == nullptr || *size < 1)
      return fail(CUPTI_ERROR_PARAMETER_SIZE_NOT_SUFFICIENT);
    cupti().per_thread.store(*static_cast<const uint8_t*>(value) != 0);
  }
  return CUPTI_SUCCESS;
}

FAKE_EXPORT CUptiResult cuptiActivityGetAttribute(CUpti_ActivityAttribute attribute, size_t* size,
                                                  void* value) {
  if (driver_interface() == nullptr) return fail(CUPTI_ERROR_UNKNOWN);
  Entry entry("cuptiActivityGetAttribute");
  if (attribute == CUPTI_ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER && *size >= 1) {
    *static_cast<uint8_t*>(value) = cupti().per_thread.load() ? 1 : 0;
    return CUPTI_SUCCESS;
  }
  return fail(CUPTI_ERROR_INVALID_PARAMETER);
}

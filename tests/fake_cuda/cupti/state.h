// SPDX-License-Identifier: Apache-2.0
// The state of the fake libcupti. One instance for ever.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "tests/fake_cuda/hooks.h"

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

struct CUpti_Subscriber_st {
  CUpti_CallbackFunc callback;
  void* userdata;
};

namespace fakecuda {

/// A record that waits for its work to end on the fake GPU.
struct Pending {
  Execution work;
  bool instant;
};

/// A buffer that the client handed over.
struct Buffer {
  uint8_t* data;
  size_t capacity;
  size_t used;
  size_t records_left;
  uint64_t ready_ns;  // full or flushed then; the injected lateness counts from here
};

/// Records of one thread, or of all where per-thread buffers are off. `mutex` is held while
/// bufferRequested runs, as CUPTI does.
struct Producer {
  std::mutex mutex;
  std::vector<Pending> pending;
  std::deque<Buffer> buffers;  // the front one is being filled
  size_t slots = 0;            // records that still fit into `buffers`
};

struct Cupti {
  std::atomic<CUpti_Subscriber_st*> subscriber{nullptr};
  std::atomic<int> inside_tid{0};
  static constexpr size_t kWords = 16;  // 1024 ids a domain
  std::atomic<uint64_t> enabled[CUPTI_CB_DOMAIN_SIZE][kWords];
  std::atomic<uint64_t> kinds{0};
  std::atomic<bool> was_active{false};  // some kind was enabled once
  std::atomic<CUpti_BuffersCallbackRequestFunc> requested{nullptr};
  std::atomic<CUpti_BuffersCallbackCompleteFunc> completed{nullptr};
  std::atomic<CUpti_ComputeCrcCallbackFunc> hash{nullptr};
  std::atomic<bool> per_thread{false};
  std::atomic<uint64_t> dropped_since_asked{0};
  std::atomic<uint64_t> callbacks_started{0};
  std::atomic<uint64_t> callbacks_returned{0};
  std::atomic<uint64_t> flush_calls{0};
  std::atomic<uint32_t> pc_enabled{0};  // contexts
  /// After a start of PC sampling that answered HARDWARE_BUSY: no callback and no record, for good.
  std::atomic<bool> deaf{false};
  std::atomic<bool> dead{false};  // STATE/FATAL_ERROR was reported
  std::atomic<CUptiResult> last_error{CUPTI_SUCCESS};

  std::mutex producers_mutex;
  std::vector<Producer*> producers;
  Producer shared;

  std::mutex ready_mutex;
  std::deque<Buffer> ready;           // full or flushed, not yet given back
  std::vector<uint8_t*> outstanding;  // buffers that the client handed over
  std::mutex delivery_mutex;          // held while bufferCompleted runs
};

Cupti& cupti();

/// libcuda's side, or null while no fake libcuda.so.1 is mapped.
Interface* driver_interface();

/// The version this library reports.
uint32_t api_version();

/// The frame of every guarded entry point: forked children, two threads at once, calls from
/// callbacks that may not call CUPTI.
class Entry {
 public:
  explicit Entry(const char* name);
  ~Entry();
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

 private:
  bool owner_ = false;
};

/// Activity calls and callback switches are only for the client that holds the subscriber.
bool require_subscriber(const char* name);

/// Around a switch of activity or PC sampling: no capture may begin meanwhile.
class Switching {
 public:
  Switching();
  ~Switching();
  Switching(const Switching&) = delete;
  Switching& operator=(const Switching&) = delete;
};

/// True in a launch-EXIT callback and in InitializeInjection, or while nothing launches: what
/// toggles activity elsewhere crashed or hung on an H200.
bool safe_place(bool allow_injection);

bool callback_enabled(uint32_t domain, uint32_t cbid);
CUptiResult fail(CUptiResult result);

// activity.cc
bool queue_record(const Execution& execution);
// records.cc
size_t record_stride(uint32_t kind);
size_t largest_stride();
void write_record(uint8_t* to, const Execution& work, uint64_t start_ns, uint64_t end_ns);

}  // namespace fakecuda

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "shim/cupti/vendor.h"

namespace gpuprof::cupti {

/// The one way into CUPTI, and the outermost lock of the shim.
///
/// CUPTI states no thread safety and hangs or crashes when two threads of a profiler are inside it,
/// so only the holder of a Guard can name its functions: the table of entry points is private to
/// guard.cc and the raw names are poisoned (vendor.h). The lock is re-entrant, because a callback
/// may run on a thread that is inside a call of ours.
///
/// Threads: the service thread and InitializeInjection `lock()`; callbacks, the exit handler and
/// the fatal-error path only `try_lock()` and skip their work when that fails. No lock that a
/// callback takes may be held when a function here is called.
class Guard {
 public:
  /// Waits for the lock. Never in a callback.
  [[nodiscard]] static Guard lock() noexcept;
  /// Takes the lock if it is free or already this thread's. Test the result with `held()`.
  [[nodiscard]] static Guard try_lock() noexcept;
  /// The same, for callbacks that are rare and whose occasion does not come again: tries for up to
  /// `patience_ns`. Bounded, because the holder may itself wait for this callback's return.
  [[nodiscard]] static Guard try_lock_for(uint64_t patience_ns) noexcept;

  Guard(Guard&& other) noexcept : held_(other.held_) { other.held_ = false; }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  Guard& operator=(Guard&&) = delete;
  ~Guard();

  [[nodiscard]] bool held() const noexcept { return held_; }

  // CUPTI's functions; same arguments and results as in cupti_callbacks.h and cupti_activity.h.
  // An optional one that this libcupti lacks answers CUPTI_ERROR_NOT_SUPPORTED.
  CUptiResult version(uint32_t* api_version) const noexcept;
  CUptiResult subscribe(CUpti_SubscriberHandle* subscriber, CUpti_CallbackFunc callback,
                        void* user) const noexcept;
  CUptiResult unsubscribe(CUpti_SubscriberHandle subscriber) const noexcept;
  CUptiResult enable_callback(bool enable, CUpti_SubscriberHandle subscriber, uint32_t domain,
                              uint32_t id) const noexcept;
  CUptiResult register_buffers(CUpti_BuffersCallbackRequestFunc requested,
                               CUpti_BuffersCallbackCompleteFunc completed) const noexcept;
  CUptiResult activity_enable(CUpti_ActivityKind kind) const noexcept;
  CUptiResult activity_disable(CUpti_ActivityKind kind) const noexcept;
  CUptiResult flush_all(bool forced) const noexcept;
  /// Optional. `attribute` is a number: older headers lack the newer names.
  CUptiResult set_attribute(uint32_t attribute, size_t* value_size, void* value) const noexcept;
  /// Optional. The CUDA ordinal of a context's device, as in activity records.
  CUptiResult device_of(CUcontext context, uint32_t* device) const noexcept;
  CUptiResult context_id_of(CUcontext context, uint32_t* id) const noexcept;
  /// Optional. Needs no subscriber; the callback stays for the life of the process.
  CUptiResult register_hash(CUpti_ComputeCrcCallbackFunc callback) const noexcept;

  // PC sampling of one context (cupti_pcsampling.h), all optional. Enable, disable, start and stop
  // hung the application for good on a helper thread: only in a launch-EXIT callback, enable also
  // in CONTEXT_CREATED.
  /// The first function of PC sampling that this libcupti lacks, null if it has all.
  const char* missing_pc_function() const noexcept;
  CUptiResult pc_enable(CUcontext context) const noexcept;
  CUptiResult pc_disable(CUcontext context) const noexcept;
  CUptiResult pc_start(CUcontext context) const noexcept;
  CUptiResult pc_stop(CUcontext context) const noexcept;
  CUptiResult pc_set_attributes(CUcontext context, CUpti_PCSamplingConfigurationInfo* attributes,
                                size_t count) const noexcept;
  CUptiResult pc_get_attributes(CUcontext context, CUpti_PCSamplingConfigurationInfo* attributes,
                                size_t count) const noexcept;
  CUptiResult pc_stall_count(CUcontext context, size_t* count) const noexcept;
  /// `names`: CUPTI_STALL_REASON_STRING_SIZE bytes each.
  CUptiResult pc_stall_reasons(CUcontext context, size_t count, uint32_t* indices,
                               char** names) const noexcept;
  /// `data`: a SamplingData (pc_records.h), laid out for the running version.
  CUptiResult pc_get_data(CUcontext context, void* data) const noexcept;

  /// CUPTI's text for a result; never null.
  const char* describe(CUptiResult result) const noexcept;

  /// Fills the table of entry points from an opened libcupti; once, before any other use.
  /// Returns null, or the name of a required function that the library lacks.
  const char* bind(void* library) const noexcept;
  /// CUPTI 13.2, by its functions: it may not be called at all where it cannot start (driver.h).
  static bool is_13_2(void* library) noexcept;
  /// The address of a bound function inside libcupti, for dladdr; null before bind().
  const void* library_address() const noexcept;

 private:
  explicit Guard(bool held) noexcept : held_(held) {}
  bool held_;
};

/// The activity buffer that CUPTI hands over in the buffer-completed callback. Walking it is the
/// one use of CUPTI that needs no Guard: the callback may run on a CUPTI thread while the service
/// thread waits inside flush_all with the Guard taken. Exists only inside on_buffer_completed().
class CompletedBuffer {
 public:
  /// The next record, null at the end of the buffer.
  const CUpti_Activity* next() noexcept;
  /// Records that CUPTI dropped for want of buffers since the last such question.
  uint64_t dropped() const noexcept;

 private:
  friend void on_buffer_completed(CUcontext, uint32_t, uint8_t*, size_t, size_t) noexcept;
  CompletedBuffer(CUcontext context, uint32_t stream, uint8_t* data, size_t valid_bytes) noexcept
      : context_(context), stream_(stream), data_(data), valid_bytes_(valid_bytes) {}

  CUcontext context_;
  uint32_t stream_;
  uint8_t* data_;
  size_t valid_bytes_;
  CUpti_Activity* record_ = nullptr;
};

/// CUPTI's buffer-completed callback (activity.cc).
void on_buffer_completed(CUcontext context, uint32_t stream, uint8_t* buffer, size_t size,
                         size_t valid_bytes) noexcept;

}  // namespace gpuprof::cupti

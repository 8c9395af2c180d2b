// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "proto/memfd_layout.h"
#include "shim/core/knobs.h"
#include "shim/core/lease.h"
#include "shim/cupti/buffer_pool.h"
#include "shim/cupti/callback_ids.h"
#include "shim/cupti/capture_tracker.h"
#include "shim/cupti/guard.h"
#include "shim/cupti/launch_rule.h"
#include "shim/cupti/quirks.h"

namespace gpuprof::cupti {

/// Where the shim stands with CUPTI.
enum class Phase : uint32_t {
  kIdle,       // nothing enabled, and no subscriber unless eager
  kArming,     // subscribed with the launch ids; a launch exit will enable activity
  kTracing,    // launches and executions are recorded
  kDisarming,  // launches are not emitted any more; a launch exit will disable activity
  kDraining,   // activity is off; CUPTI still holds buffers
  kInert,      // for good
};

/// The arming state machine.
///
/// Who does what is dictated by what was measured: toggling activity on a helper thread while the
/// application launches segfaults CUPTI 12.8, 12.9 and 13.0.0, and in the launch-exit callback on
/// the application's own thread it ran clean; subscribe and unsubscribe are the reverse. So
/// round(), on the service thread, subscribes, enables ids, flushes and unsubscribes, and
/// on_launch_exit(), in a callback, enables and disables activity. Every change of phase happens
/// with the Guard taken, so the two never race; phase() is read without it.
///
///   kIdle -> kArming -> kTracing -> kDisarming -> kDraining -> kIdle
///
/// Where ids stick (quirks.h) those that are not safe to switch off stay on at kIdle, and the
/// subscriber with them: runtime ids for good, driver ids until there was no call for kQuietNs.
///
/// kDisarming and kDraining go back to kArming when tracing is wanted again. Under the no_disarm
/// quirk kDisarming is where it rests: the launch ids are off, activity is on, and what was
/// launched before still comes out for kDrainTimeoutNs. If subscribe fails nothing else of CUPTI is
/// touched: V1 activity calls would steal the other client's buffers.
class Arming {
 public:
  static constexpr uint64_t kFlushPeriodNs = 100'000'000;
  /// A launch on another thread that had begun before ActivityDisable may still put its record into
  /// a fresh buffer after the FlushAll(1): so long is waited, and flushed once more.
  static constexpr uint64_t kDrainGraceNs = 20'000'000;
  static constexpr uint64_t kDrainTimeoutNs = 2'000'000'000;
  /// No API call for so long, and none under way: no thread is about to be in one.
  static constexpr uint64_t kQuietNs = 1'000'000'000;
  /// How long the call that begins a capture waits for a switch: an enable of PC sampling takes 67
  /// to 117 ms, a disable up to 370.
  static constexpr uint64_t kCapturePatienceNs = 1'000'000'000;
  static constexpr uint64_t kFirstBackOffNs = 1'000'000'000;
  static constexpr uint64_t kLongestBackOffNs = 30'000'000'000;

  constexpr Arming() = default;

  /// What is known after bind(); before anything else.
  void configure(uint32_t version, const Quirks& quirks, bool eager) noexcept;
  /// What CUPTI's UNKNOWN is due to in this process, "" if it is not known; `text` stays.
  void explain_unknown(const char* text) noexcept { unknown_is_ = text; }

  [[nodiscard]] Phase phase() const noexcept { return phase_.load(std::memory_order_acquire); }
  [[nodiscard]] bool eager() const noexcept { return eager_; }
  [[nodiscard]] uint32_t version() const noexcept { return version_; }
  [[nodiscard]] const Quirks& quirks() const noexcept { return quirks_; }
  BufferPool& buffers() noexcept { return buffers_; }
  CaptureTracker& captures() noexcept { return captures_; }
  LaunchRule& rule() noexcept { return rule_; }
  /// Under the no_disarm quirk: nobody wants the records that CUPTI goes on making.
  [[nodiscard]] bool discarding() const noexcept {
    return discarding_.load(std::memory_order_relaxed);
  }
  /// From ActivityDisable until the buffers are back: records without an end are incomplete.
  [[nodiscard]] bool closing() const noexcept { return closing_.load(std::memory_order_relaxed); }

  // InitializeInjection.
  /// Eager mode: takes the subscriber now. False and the state says why if it is refused.
  bool subscribe_at_init() noexcept;
  /// Everything up to kTracing on the calling thread, before any launch. False likewise.
  bool arm_at_init() noexcept;
  /// Why the last step failed, as on the status page.
  [[nodiscard]] const char* failure() const noexcept { return failure_; }

  // Service thread.
  /// One step towards what is wanted.
  void round(const shim::Demand& demand, uint64_t now_ns) noexcept;
  /// How long the service thread may sleep.
  [[nodiscard]] uint64_t sleep_ns() const noexcept;
  /// The last FlushAll(1), at exit.
  void final_flush() noexcept;

  // Callbacks.
  /// Whether activity was ever on in this process.
  [[nodiscard]] bool was_on_once() const noexcept {
    return was_on_once_.load(std::memory_order_relaxed);
  }
  /// An API callback came, and activity was never on. `inside`: the calls that the thread is in.
  void note_call(bool entered, uint32_t* inside) noexcept;
  /// `thread` enters a call that begins a capture: nothing is switched any more, and what is being
  /// switched on another thread is waited for.
  void before_capture(const void* thread) noexcept;
  /// A kernel or graph launch of `context` returns to the application in kArming or kDisarming.
  /// `captured`: it became a graph node.
  void on_launch_exit(const CUpti_CallbackData& data, bool captured) noexcept;

  /// CUPTI traces nothing any more: after a fatal error, and after a start of PC sampling that it
  /// refused because another process samples the GPU (13.0, H200; a new subscription was called
  /// back again then, but recorded nothing, and the program ended with SIGSEGV soon after). Inert.
  /// What CUPTI held is lost, so nothing counts as recorded since the last flush. Any thread.
  void lose(gpuprof_reason reason, const char* text) noexcept;

  /// State and tier of the page follow PC sampling. With the Guard.
  void show_tracing() noexcept;

  /// No CUPTI call ever again. Any thread.
  void go_inert(gpuprof_reason reason, const char* text) noexcept;

 private:
  void step(const shim::Demand& demand, uint64_t now_ns) noexcept;
  bool subscribe(const Guard& guard, uint64_t now_ns) noexcept;
  bool prepare(const Guard& guard, uint64_t now_ns) noexcept;
  bool enable_launch_ids(const Guard& guard) noexcept;
  void disable_launch_ids(const Guard& guard) noexcept;
  void switch_runtime_ids(const Guard& guard, bool copies, bool on) noexcept;
  void follow_rule(const Guard& guard) noexcept;
  bool enable_activity(const Guard& guard) noexcept;
  void disable_activity(const Guard& guard) noexcept;
  void enter_tracing() noexcept;
  void begin_arming(uint64_t now_ns) noexcept;
  void begin_disarming(const shim::Demand& demand, uint64_t now_ns) noexcept;
  void stay_armed(const Guard& guard, uint64_t now_ns) noexcept;
  void resume() noexcept;
  void cancel_arming(const shim::Demand& demand, uint64_t now_ns) noexcept;
  void drain(bool wanted, uint64_t now_ns) noexcept;
  void to_idle(const Guard& guard, uint64_t now_ns, gpuprof_reason reason,
               const char* text) noexcept;
  void release(const Guard& guard, uint64_t now_ns) noexcept;
  void give_back(uint64_t now_ns) noexcept;
  [[nodiscard]] bool ids_must_stay(uint64_t now_ns) const noexcept;
  void back_off(uint64_t now_ns) noexcept;
  void fail(const Guard& guard, uint64_t now_ns, const char* what, CUptiResult result) noexcept;
  void flush(uint64_t now_ns) noexcept;
  /// kInert is for good, and may be entered without the Guard.
  void set_phase(Phase phase) noexcept {
    Phase old = phase_.load(std::memory_order_relaxed);
    while (old != Phase::kInert &&
           !phase_.compare_exchange_weak(old, phase, std::memory_order_release)) {
    }
  }

  std::atomic<Phase> phase_{Phase::kIdle};
  std::atomic<bool> closing_{false};
  std::atomic<bool> discarding_{false};
  std::atomic<bool> was_on_once_{false};  // activity, in the life of the process
  std::atomic<uint64_t> last_call_ns_{0};
  std::atomic<uint64_t> last_flush_ns_{0};  // written by the service thread
  std::atomic<uint64_t> recording_since_ns_{0};
  std::atomic<uint32_t> calls_{0};  // under way, of all threads

  // Set by configure().
  uint32_t version_ = 0;
  Quirks quirks_;
  bool eager_ = false;

  // Guarded by the Guard.
  CUpti_SubscriberHandle subscriber_ = nullptr;
  bool subscribed_ = false;
  bool attributes_set_ = false;
  bool activity_on_ = false;
  bool armed_ = false;  // activity was on since the last kIdle
  bool switching_ = false;
  bool enable_failed_ = false;
  CUptiResult enable_result_ = CUPTI_SUCCESS;
  bool driver_ids_on_ = false;
  bool runtime_launch_ids_on_ = false;
  bool runtime_copy_ids_on_ = false;
  char refused_[96] = {};  // kinds that CUPTI refused at the last enable, as on the status page
  gpuprof_reason off_reason_ = GPUPROF_REASON_NONE;
  uint64_t drain_since_ns_ = 0;

  // Service thread only (and init, before that thread runs).
  uint64_t retry_at_ns_ = 0;
  uint64_t back_off_ns_ = 0;
  const char* unknown_is_ = "";
  char failure_[896] = {};
  bool said_outstanding_ = false;
  bool drain_flushed_ = false;

  BufferPool buffers_;
  CaptureTracker captures_;
  LaunchRule rule_;
};

/// The one of the process; constant-initialised and never destroyed.
Arming& arming() noexcept;

/// CUPTI's callbacks (callbacks.cc, activity.cc).
void on_callback(void* user, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                 const void* data) noexcept;
void on_buffer_requested(uint8_t** buffer, size_t* size, size_t* max_records) noexcept;

}  // namespace gpuprof::cupti

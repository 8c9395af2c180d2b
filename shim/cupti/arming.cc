// SPDX-License-Identifier: Apache-2.0
#include "shim/cupti/arming.h"

#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "shim/core/clock.h"
#include "shim/core/correlation.h"
#include "shim/core/log.h"
#include "shim/core/status.h"
#include "shim/cupti/callback_scope.h"
#include "shim/cupti/launch_names.h"
#include "shim/cupti/pc_sampling.h"
#include "shim/cupti/records.h"
#include "shim/cupti/service.h"

namespace gpuprof::cupti {
namespace {

constinit Arming the_arming;

constexpr RecordKind kKinds[] = {RecordKind::kConcurrentKernel, RecordKind::kMemcpy,
                                 RecordKind::kMemcpyPeer, RecordKind::kMemset};

const char* name_of(RecordKind kind) {
  switch (kind) {
    case RecordKind::kMemcpy:
      return "MEMCPY";
    case RecordKind::kMemcpyPeer:
      return "MEMCPY2";
    case RecordKind::kMemset:
      return "MEMSET";
    default:
      return "CONCURRENT_KERNEL";
  }
}

/// CUPTI_ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER (12.3), a uint8_t.
constexpr uint32_t kPerThreadBuffers = 9;

const char* text_of(gpuprof_reason reason) {
  switch (reason) {
    case GPUPROF_REASON_RELEASED:
      return "the controller switched profiling off";
    case GPUPROF_REASON_LEASE_EXPIRED:
      return "the controller is gone: its lease ran out";
    default:
      return nullptr;
  }
}

}  // namespace

Arming& arming() noexcept { return the_arming; }

void Arming::configure(uint32_t version, const Quirks& quirks, bool eager) noexcept {
  version_ = version;
  quirks_ = quirks;
  eager_ = eager;
  rule_.assume(quirks.launch_rule);
}

// --- before activity
// ------------------------------------------------------------------------------

/// Subscriber, buffers and launch ids: all that comes before activity.
bool Arming::prepare(const Guard& guard, uint64_t now_ns) noexcept {
  if (!subscribe(guard, now_ns)) return false;
  if (!attributes_set_ && quirks_.per_thread_buffers) {
    // Before the first registration, as cupti_activity.h asks for. If it is refused the pool's
    // bound holds all the same: it only runs empty sooner.
    uint8_t off = 0;
    size_t size = sizeof off;
    (void)guard.set_attribute(kPerThreadBuffers, &size, &off);
  }
  attributes_set_ = true;
  // At each arm: another client may have registered its own since, and in V1 they are the
  // process's.
  CUptiResult result = guard.register_buffers(on_buffer_requested, on_buffer_completed);
  if (result != CUPTI_SUCCESS) {
    fail(guard, now_ns, "cuptiActivityRegisterCallbacks", result);
    return false;
  }
  if (!enable_launch_ids(guard)) {
    fail(guard, now_ns, "cuptiEnableCallback", CUPTI_ERROR_UNKNOWN);
    return false;
  }
  return true;
}

// --- activity ------------------------------------------------------------------------------------

bool Arming::enable_activity(const Guard& guard) noexcept {
  if (activity_on_) return true;
  refused_[0] = '\0';
  for (RecordKind kind : kKinds) {
    const CUptiResult result = guard.activity_enable(static_cast<CUpti_ActivityKind>(kind));
    if (result == CUPTI_SUCCESS) continue;
    if (kind == RecordKind::kConcurrentKernel) {
      enable_result_ = result;
      return false;
    }
    const size_t used = strlen(refused_);
    snprintf(refused_ + used, sizeof refused_ - used, "%s %s (%d)",
             used == 0 ? "not traced, CUPTI refused" : ",", name_of(kind), result);
    shim::log_line("activity kind %u refused: %d (%s)", static_cast<unsigned>(kind), result,
                   guard.describe(result));
  }
  closing_.store(false, std::memory_order_relaxed);
  activity_on_ = true;
  was_on_once_.store(true, std::memory_order_relaxed);
  return true;
}

void Arming::disable_activity(const Guard& guard) noexcept {
  closing_.store(true, std::memory_order_relaxed);
  for (RecordKind kind : kKinds) {
    const CUptiResult result = guard.activity_disable(static_cast<CUpti_ActivityKind>(kind));
    if (result != CUPTI_SUCCESS) {
      shim::log_line("disabling activity kind %u: %d", static_cast<unsigned>(kind), result);
    }
  }
  activity_on_ = false;
  (void)guard.flush_all(true);
}

void Arming::enter_tracing() noexcept {
  shim::set_epoch(shim::correlations().epoch());
  const uint64_t now_ns = shim::monotonic_ns();
  recording_since_ns_.store(now_ns, std::memory_order_relaxed);
  shim::set_recording(true, now_ns);
  shim::count_arm();
  armed_ = true;
  discarding_.store(false, std::memory_order_relaxed);
  set_phase(Phase::kTracing);
  show_tracing();
}

void Arming::show_tracing() noexcept {
  if (phase() != Phase::kTracing) return;
  const bool sampling = pc_sampling().contexts_on() != 0;
  shim::set_tier(pc_sampling().active_tier());
  shim::set_state(sampling ? GPUPROF_STATE_TRACING_PC : GPUPROF_STATE_TRACING, GPUPROF_REASON_NONE,
                  refused_[0] == '\0' ? nullptr : refused_);
}

/// The mark comes first: a Switch sees it or is seen here (all in one order). A flush is not waited
/// for: it may wait for this very callback.
void Arming::before_capture(const void* thread) noexcept {
  captures_.entering(thread, shim::monotonic_ns());
  if (!captures_.switch_under_way()) return;
  const CallbackScope scope;
  const uint64_t begin_ns = shim::monotonic_ns();
  while (captures_.switch_under_way()) {
    if (shim::monotonic_ns() - begin_ns >= kCapturePatienceNs) {
      shim::count_pc(GPUPROF_PC_COUNT_SKIPPED_GUARD);
      return;
    }
    usleep(200);
  }
}

void Arming::on_launch_exit(const CUpti_CallbackData& data, bool captured) noexcept {
  const uint64_t now_ns = shim::monotonic_ns();
  if (captured) captures_.saw_captured_launch(now_ns);
  if (captured || captures_.in_progress(now_ns)) return;
  const Guard guard = Guard::try_lock();
  if (!guard.held()) {
    shim::count_drop(GPUPROF_DROP_GUARD_BUSY);
    return;
  }
  if (switching_) return;  // a launch of CUPTI's own, inside the switch below
  const CaptureTracker::Switch allowed(captures_, now_ns);
  if (!allowed.allowed()) return;  // one began since
  switching_ = true;
  if (phase() == Phase::kArming) {
    pc_sampling().unstick(guard, data.context);
    shim::correlations().begin_arm(data.correlationId);
    launch_names().begin_arm();
    if (enable_activity(guard)) {
      enter_tracing();
      pc_sampling().on_tracing(guard, data.context, data.contextUid);
    } else {
      enable_failed_ = true;
      drain_since_ns_ = now_ns;
      set_phase(Phase::kDraining);
    }
    wake_service();
  } else if (phase() == Phase::kDisarming && !quirks_.no_disarm &&
             pc_sampling().switch_off(guard, data.context, now_ns)) {
    disable_activity(guard);
    drain_since_ns_ = now_ns;
    set_phase(Phase::kDraining);
    wake_service();
  }
  switching_ = false;
}

void Arming::lose(gpuprof_reason reason, const char* text) noexcept {
  if (phase() == Phase::kTracing) {
    const uint64_t flushed_ns = last_flush_ns_.load(std::memory_order_relaxed);
    const uint64_t begun_ns = recording_since_ns_.load(std::memory_order_relaxed);
    shim::set_recording(false, flushed_ns > begun_ns ? flushed_ns : begun_ns);
  }
  shim::log_line("%s", text);
  go_inert(reason, text);
}

// --- InitializeInjection -------------------------------------------------------------------------

bool Arming::subscribe_at_init() noexcept {
  const Guard guard = Guard::lock();
  return subscribe(guard, shim::monotonic_ns());
}

bool Arming::arm_at_init() noexcept {
  const uint64_t now_ns = shim::monotonic_ns();
  const Guard guard = Guard::lock();
  if (!prepare(guard, now_ns)) return false;
  shim::correlations().begin_arm_at_init();
  launch_names().begin_arm();
  if (!enable_activity(guard)) {
    fail(guard, now_ns, "cuptiActivityEnable", enable_result_);
    return false;
  }
  enter_tracing();
  return true;
}

// --- service thread ------------------------------------------------------------------------------

void Arming::round(const shim::Demand& demand, uint64_t now_ns) noexcept {
  step(demand, now_ns);
  shim::set_buffers_outstanding(buffers_.outstanding());
}

void Arming::step(const shim::Demand& demand, uint64_t now_ns) noexcept {
  const bool wanted = demand.tier != GPUPROF_TIER_OFF;
  switch (phase()) {
    case Phase::kIdle:
      if (wanted && now_ns >= retry_at_ns_) {
        begin_arming(now_ns);
      } else if (subscribed_ && driver_ids_on_) {
        give_back(now_ns);
      }
      if (!wanted && back_off_ns_ != 0) {
        back_off_ns_ = retry_at_ns_ = 0;
        shim::set_state(GPUPROF_STATE_IDLE, demand.reason, text_of(demand.reason));
      }
      break;
    case Phase::kArming:
      if (!wanted) cancel_arming(demand, now_ns);
      break;
    case Phase::kTracing:
      if (!wanted) begin_disarming(demand, now_ns);
      flush(now_ns);
      break;
    case Phase::kDisarming:
      if (wanted) resume();
      if (quirks_.no_disarm && shim::elapsed_ns(drain_since_ns_, now_ns) >= kDrainTimeoutNs &&
          phase() == Phase::kDisarming) {
        discarding_.store(true, std::memory_order_relaxed);
      }
      flush(now_ns);
      break;
    case Phase::kDraining:
      drain(wanted, now_ns);
      break;
    case Phase::kInert:
      break;
  }
}

uint64_t Arming::sleep_ns() const noexcept {
  switch (phase()) {
    case Phase::kTracing:
    case Phase::kDisarming:
      return kFlushPeriodNs;
    case Phase::kDraining:
      return 10'000'000;
    default:
      return 250'000'000;  // four wake-ups a second, and an arm is seen within 300 ms
  }
}

void Arming::begin_arming(uint64_t now_ns) noexcept {
  const Guard guard = Guard::lock();
  if (phase() != Phase::kIdle) return;  // inert meanwhile
  if (!prepare(guard, now_ns)) return;
  back_off_ns_ = retry_at_ns_ = 0;
  shim::set_state(GPUPROF_STATE_ARMING, GPUPROF_REASON_WAITING_FOR_LAUNCH,
                  "activity is enabled in the next kernel launch");
  set_phase(Phase::kArming);
}

/// Nobody wants it any more and no launch came that could arm: activity is still as it was before
/// kArming.
void Arming::cancel_arming(const shim::Demand& demand, uint64_t now_ns) noexcept {
  const Guard guard = Guard::lock();
  if (phase() != Phase::kArming) return;
  off_reason_ = demand.reason;
  if (activity_on_) {  // it came from kDisarming
    set_phase(Phase::kDisarming);
    if (quirks_.no_disarm) {
      stay_armed(guard, now_ns);
      return;
    }
    shim::set_state(GPUPROF_STATE_DISARMING, GPUPROF_REASON_WAITING_FOR_LAUNCH,
                    text_of(demand.reason));
    return;
  }
  // Launches of captures only, or all while the Guard was taken. The next one arms and the round
  // after it disarms.
  if (ids_must_stay(now_ns)) return;
  drain_since_ns_ = now_ns;
  set_phase(Phase::kDraining);
}

/// Wanted again in kDisarming.
void Arming::resume() noexcept {
  const Guard guard = Guard::lock();
  if (phase() != Phase::kDisarming) return;
  // Off under no_disarm only. They were accepted before: activity would not be on.
  if (!driver_ids_on_ && !enable_launch_ids(guard)) return;
  shim::set_state(GPUPROF_STATE_ARMING, GPUPROF_REASON_WAITING_FOR_LAUNCH, nullptr);
  set_phase(Phase::kArming);
}

/// The rest state under no_disarm, in kDisarming: launches cost nothing of ours any more.
void Arming::stay_armed(const Guard& guard, uint64_t now_ns) noexcept {
  disable_launch_ids(guard);
  drain_since_ns_ = now_ns;
  shim::set_state(GPUPROF_STATE_DISARMING, GPUPROF_REASON_QUIRK, quirks_.reason);
}

void Arming::begin_disarming(const shim::Demand& demand, uint64_t now_ns) noexcept {
  const Guard guard = Guard::lock();
  if (phase() != Phase::kTracing) return;
  off_reason_ = demand.reason;
  shim::set_tier(GPUPROF_TIER_OFF);
  shim::set_recording(false, shim::monotonic_ns());
  set_phase(Phase::kDisarming);
  if (quirks_.no_disarm) {
    stay_armed(guard, now_ns);
  } else {
    shim::set_state(GPUPROF_STATE_DISARMING, GPUPROF_REASON_WAITING_FOR_LAUNCH,
                    text_of(demand.reason));
  }
}

/// FlushAll(0), every 100 ms: CUPTI's own flush period returns full buffers only and held an idle
/// GPU's records for 15 s.
void Arming::flush(uint64_t now_ns) noexcept {
  if (now_ns - last_flush_ns_.load(std::memory_order_relaxed) < kFlushPeriodNs / 2) return;
  last_flush_ns_.store(now_ns, std::memory_order_relaxed);
  const Guard guard = Guard::lock();
  if (phase() == Phase::kInert) return;
  if (pc_sampling().holds_flushes(guard, shim::monotonic_ns())) return;
  (void)guard.flush_all(false);
  follow_rule(guard);
}

void Arming::drain(bool wanted, uint64_t now_ns) noexcept {
  const Guard guard = Guard::lock();
  if (phase() != Phase::kDraining) return;
  // The callback that began the drain may have read the clock after this round did.
  const uint64_t waited_ns = shim::elapsed_ns(drain_since_ns_, now_ns);
  if (armed_ && waited_ns < kDrainGraceNs) return;
  if (armed_ && !drain_flushed_) {
    drain_flushed_ = true;
    last_flush_ns_.store(now_ns, std::memory_order_relaxed);
    (void)guard.flush_all(false);
  }
  if (buffers_.outstanding() == 0) {
    said_outstanding_ = drain_flushed_ = false;
    if (enable_failed_) {
      enable_failed_ = false;
      fail(guard, now_ns,
           pc_sampling().stuck() ? "PC sampling could not be switched off (restart the process to "
                                   "profile it again): cuptiActivityEnable"
                                 : "cuptiActivityEnable",
           enable_result_);
    } else {
      shim::set_buffers_outstanding(0);
      to_idle(guard, now_ns, off_reason_, text_of(off_reason_));
    }
    return;
  }
  if (now_ns - last_flush_ns_.load(std::memory_order_relaxed) >= kFlushPeriodNs) {
    last_flush_ns_.store(now_ns, std::memory_order_relaxed);
    (void)guard.flush_all(false);
  }
  if (waited_ns < kDrainTimeoutNs) return;
  // Unsubscribing now could let CUPTI complete a buffer into a client that is gone.
  if (!said_outstanding_) {
    said_outstanding_ = true;
    char text[96];
    snprintf(text, sizeof text, "CUPTI holds %u activity buffers; the subscriber is kept",
             buffers_.outstanding());
    shim::set_state(GPUPROF_STATE_DISARMING, GPUPROF_REASON_BUFFERS_OUTSTANDING, text);
  }
  if (!wanted) return;
  said_outstanding_ = drain_flushed_ = false;
  shim::set_state(GPUPROF_STATE_ARMING, GPUPROF_REASON_WAITING_FOR_LAUNCH, nullptr);
  set_phase(Phase::kArming);
}

/// Ids were left on at kIdle: they go off when no thread is in a call.
void Arming::give_back(uint64_t now_ns) noexcept {
  const Guard guard = Guard::lock();
  if (phase() == Phase::kIdle) release(guard, now_ns);
}

/// Switches ids off and, unless eager, gives the subscriber back; what may not go off stays.
void Arming::release(const Guard& guard, uint64_t now_ns) noexcept {
  if (subscribed_ && !ids_must_stay(now_ns)) disable_launch_ids(guard);
  const bool ids_on = driver_ids_on_ || runtime_launch_ids_on_;
  if (subscribed_ && !eager_ && !ids_on) {
    // If it fails CUPTI has us still: a new subscribe would find the subscriber taken by another
    // client, so the next arm uses this one.
    const CUptiResult result = guard.unsubscribe(subscriber_);
    subscribed_ = result != CUPTI_SUCCESS;
    if (subscribed_) {
      shim::log_line("cuptiUnsubscribe: %d (%s); kept", result, guard.describe(result));
    } else {
      subscriber_ = nullptr;
    }
  }
}

void Arming::to_idle(const Guard& guard, uint64_t now_ns, gpuprof_reason reason,
                     const char* text) noexcept {
  release(guard, now_ns);
  closing_.store(false, std::memory_order_relaxed);
  shim::set_tier(GPUPROF_TIER_OFF);
  if (armed_) shim::count_disarm();
  armed_ = false;
  shim::set_state(GPUPROF_STATE_IDLE, reason, text);
  set_phase(Phase::kIdle);
}

void Arming::back_off(uint64_t now_ns) noexcept {
  back_off_ns_ = back_off_ns_ == 0 ? kFirstBackOffNs : back_off_ns_ * 2;
  if (back_off_ns_ > kLongestBackOffNs) back_off_ns_ = kLongestBackOffNs;
  retry_at_ns_ = now_ns + back_off_ns_;
}

/// An arm failed: back to no subscriber, and a later try.
void Arming::fail(const Guard& guard, uint64_t now_ns, const char* what,
                  CUptiResult result) noexcept {
  back_off(now_ns);
  const auto seconds = static_cast<unsigned>(back_off_ns_ / 1'000'000'000);
  if (result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED) {
    snprintf(failure_, sizeof failure_,
             "another CUPTI client (torch.profiler, Nsight, ...) holds the subscriber; next try in "
             "%u s",
             seconds);
    shim::set_state(GPUPROF_STATE_BUSY, GPUPROF_REASON_OTHER_CLIENT, failure_);
    return;
  }
  const bool explained = result == CUPTI_ERROR_UNKNOWN && unknown_is_[0] != '\0';
  snprintf(failure_, sizeof failure_, "%s answered %d (%s); %s%snext try in %u s", what, result,
           guard.describe(result), explained ? unknown_is_ : "", explained ? "; " : "", seconds);
  if (!subscribed_) {
    shim::set_state(GPUPROF_STATE_IDLE, GPUPROF_REASON_SUBSCRIBE_FAILED, failure_);
    return;
  }
  to_idle(guard, now_ns, GPUPROF_REASON_ENABLE_FAILED, failure_);
}

void Arming::final_flush() noexcept {
  const Guard guard = Guard::lock();
  const Phase now = phase();
  if (now != Phase::kTracing && now != Phase::kDisarming && now != Phase::kDraining) return;
  closing_.store(true, std::memory_order_relaxed);
  (void)guard.flush_all(true);
}

void Arming::go_inert(gpuprof_reason reason, const char* text) noexcept {
  if (phase_.exchange(Phase::kInert, std::memory_order_acq_rel) == Phase::kInert) return;
  pc_sampling().go_inert();
  shim::set_tier(GPUPROF_TIER_OFF);
  shim::set_state(GPUPROF_STATE_INERT, reason, text);
}

}  // namespace gpuprof::cupti

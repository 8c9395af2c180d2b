// SPDX-License-Identifier: Apache-2.0
// PcSampling's serialized tier: its windows, and what forbids them.
#include "shim/core/clock.h"
#include "shim/core/log.h"
#include "shim/core/status.h"
#include "shim/cupti/arming.h"
#include "shim/cupti/callback_scope.h"
#include "shim/cupti/pc_sampling.h"
#include "shim/cupti/service.h"

namespace gpuprof::cupti {

bool PcSampling::window_due() const noexcept {
  const uint64_t due_ns = window_due_ns_.load(std::memory_order_relaxed);
  return due_ns != kNever && shim::monotonic_coarse_ns() >= due_ns;
}

bool PcSampling::holds_flushes(const Guard& /*guard*/, uint64_t now_ns) const noexcept {
  return window_.load(std::memory_order_relaxed) &&
         shim::elapsed_ns(window_began_ns_, now_ns) < kStrayNs;
}

/// In a launch-exit callback of the context: opens or closes its window when it is time.
void PcSampling::step_window(const Guard& guard, PcContext& on, uint64_t now_ns) noexcept {
  if (on.serializing()) {
    const bool over = shim::elapsed_ns(window_began_ns_, now_ns) >= kWindowNs || seen() != 0;
    if (over) close_window(guard, on, true, now_ns);
    return;
  }
  // One at a time: two GPUs of a process may wait for each other.
  if (window_.load(std::memory_order_relaxed)) return;
  const uint64_t due_ns = window_due_ns_.load(std::memory_order_relaxed);
  if (due_ns == kNever) {
    // Released and asked for again before any launch had switched it off.
    window_due_ns_.store(now_ns + kSettleNs, std::memory_order_relaxed);
  } else if (now_ns >= due_ns) {
    open_window(guard, on, now_ns);
  }
}

void PcSampling::open_window(const Guard& guard, PcContext& on, uint64_t now_ns) noexcept {
  window_.store(true);
  if (seen_.load() != 0) {
    window_.store(false);
    return;
  }
  CUptiResult result = CUPTI_SUCCESS;
  {
    const Switching switching(*this);
    result = on.start(guard);
  }
  if (result != CUPTI_SUCCESS) {
    window_.store(false);
    PcRefusal refusal;
    explain("cuptiPCSamplingStart", result, guard.describe(result), around_, &refusal);
    refusal.deaf = true;
    fail(guard, on, refusal, now_ns);
    return;
  }
  window_began_ns_ = now_ns;
  window_due_ns_.store(now_ns + kWindowNs, std::memory_order_relaxed);
  // A launch that forbids it may have entered meanwhile; it waits for the Guard, but not for ever.
  if (seen_.load() != 0) close_window(guard, on, true, now_ns);
}

/// `may_switch`: in a launch-exit callback.
void PcSampling::close_window(const Guard& guard, PcContext& on, bool may_switch,
                              uint64_t now_ns) noexcept {
  CUptiResult result = CUPTI_SUCCESS;
  Drain drained = Drain::kOk;
  {
    const Switching switching(*this);
    drained = on.stop(guard, true, &result);
  }
  if (result != CUPTI_SUCCESS) {
    // Kernels may still be serialized: only a disable is sure to end it.
    if (!may_switch) {
      shim::log_line("cuptiPCSamplingStop in a launch's ENTER: %d (%s)", result,
                     guard.describe(result));
      shim::count_pc(GPUPROF_PC_COUNT_SKIPPED_GUARD);
      return;
    }
    PcRefusal refusal;
    explain("cuptiPCSamplingStop", result, guard.describe(result), around_, &refusal);
    fail(guard, on, refusal, now_ns);
    return;
  }
  window_over();
  handle(guard, on, drained, may_switch, now_ns);
}

/// The next one is due when this one was its share of the time.
void PcSampling::window_over() noexcept {
  window_.store(false);
  const uint64_t end_ns = shim::monotonic_ns();
  const uint64_t duty = duty_.load(std::memory_order_relaxed);
  uint64_t pause_ns = shim::elapsed_ns(window_began_ns_, end_ns) * (1000 - duty) / duty;
  if (first_window_ && pause_ns > kFirstPauseNs) pause_ns = kFirstPauseNs;
  first_window_ = false;
  window_due_ns_.store(end_ns + pause_ns, std::memory_order_relaxed);
}

/// A window of a context that launches nothing any more.
void PcSampling::close_stray_window(const Guard& guard, uint64_t now_ns) noexcept {
  if (!window_.load(std::memory_order_relaxed)) return;
  if (shim::elapsed_ns(window_began_ns_, now_ns) < kStrayNs) return;
  for (PcContext& on : contexts_) {
    if (on.on() && on.serializing() && is_stray(on, now_ns)) close_window(guard, on, true, now_ns);
  }
}

void PcSampling::close_windows(const Guard& guard, uint64_t now_ns) noexcept {
  bury(guard);
  for (PcContext& on : contexts_) {
    if (on.on() && on.serializing()) close_window(guard, on, false, now_ns);
  }
}

void PcSampling::on_launch_enter(Domain domain, uint32_t id, Call call,
                                 const CUpti_CallbackData& data) noexcept {
  const uint32_t sight = sight_of_launch(domain, id, call, data);
  if (sight == 0) return;
  const CallbackScope scope;
  seen_.fetch_or(sight);
  wake_service();
  if (!window_.load()) return;
  // The one place where sampling is stopped outside a launch-EXIT callback: afterwards is too late.
  // It is the application's own thread in the driver's launch function here too.
  const uint64_t now_ns = shim::monotonic_ns();
  if (arming().captures().in_progress(now_ns)) {
    shim::count_pc(GPUPROF_PC_COUNT_SKIPPED_CAPTURE);
    return;
  }
  const Guard guard = Guard::try_lock_for(kStopPatienceNs);
  if (!guard.held() || switching_) {
    shim::count_pc(GPUPROF_PC_COUNT_SKIPPED_GUARD);
    return;
  }
  const CaptureTracker::Switch allowed(arming().captures(), shim::monotonic_ns());
  if (!allowed.allowed()) {  // one began while the Guard was waited for
    shim::count_pc(GPUPROF_PC_COUNT_SKIPPED_CAPTURE);
    return;
  }
  close_windows(guard, now_ns);
}

/// Says why, once for each time that it is asked for. True if it had not been said.
bool PcSampling::refuse_serialized() noexcept {
  if (serialized_refusal_.reason != GPUPROF_PC_REASON_NONE) return false;
  const uint32_t seen = seen_.load(std::memory_order_relaxed);
  if ((seen & kSawGraph) != 0) shim::count_pc(GPUPROF_PC_COUNT_GRAPH_REFUSED);
  if ((seen & kSawCooperative) != 0) shim::count_pc(GPUPROF_PC_COUNT_COOPERATIVE_REFUSED);
  if ((seen & kSawCollective) != 0) shim::count_pc(GPUPROF_PC_COUNT_COLLECTIVE_REFUSED);
  constexpr char kEnd[] = "for the rest of this process; --pc-sampling continuous works";
  if ((seen & kSawCollective) != 0) {
    refuse(&serialized_refusal_, GPUPROF_PC_REASON_COLLECTIVE, false,
           "serialized PC sampling is refused: an NCCL, NVSHMEM or other kernel that waits for "
           "other ranks was seen, %s",
           kEnd);
  } else if ((seen & kSawGraph) != 0) {
    refuse(&serialized_refusal_, GPUPROF_PC_REASON_GRAPH, false,
           "serialized PC sampling is refused: a CUDA graph was executed, whose kernels share one "
           "correlation id, %s",
           kEnd);
  } else {
    refuse(&serialized_refusal_, GPUPROF_PC_REASON_COOPERATIVE, false,
           "serialized PC sampling is refused: a cooperative launch was seen, %s", kEnd);
  }
  shim::log_line("%s", serialized_refusal_.text);
  return true;
}

}  // namespace gpuprof::cupti

// SPDX-License-Identifier: Apache-2.0
#include "shim/cupti/pc_sampling.h"

#include <cstdio>
#include <cstring>

#include "shim/core/clock.h"
#include "shim/core/log.h"
#include "shim/core/metadata.h"
#include "shim/core/status.h"
#include "shim/core/thread.h"
#include "shim/cupti/arming.h"
#include "shim/cupti/callback_scope.h"
#include "shim/cupti/pc_setup.h"

namespace gpuprof::cupti {
namespace {

constinit PcSampling the_pc_sampling;

}  // namespace

PcSampling& pc_sampling() noexcept { return the_pc_sampling; }

void PcSampling::configure(uint32_t version) noexcept { version_ = version; }

// --- launches ------------------------------------------------------------------------------------

void PcSampling::look(CUcontext context, uint32_t context_id, bool captured,
                      PcThreadState* thread) noexcept {
  const CallbackScope scope;
  const uint64_t now_ns = shim::monotonic_ns();
  launched_.store(true, std::memory_order_relaxed);
  CaptureTracker& captures = arming().captures();
  if (captured) captures.saw_captured_launch(now_ns);
  if (captured || captures.in_progress(now_ns)) {
    shim::count_pc(GPUPROF_PC_COUNT_SKIPPED_CAPTURE);
    return;
  }
  const Guard guard = Guard::try_lock();
  if (!guard.held()) {
    shim::count_pc(GPUPROF_PC_COUNT_SKIPPED_GUARD);
    return;
  }
  // A launch of CUPTI's own inside a switch, or one that left as tracing ended.
  if (switching_ || arming().phase() != Phase::kTracing) return;
  const CaptureTracker::Switch allowed(captures, now_ns);
  if (!allowed.allowed()) {  // one began since
    shim::count_pc(GPUPROF_PC_COUNT_SKIPPED_CAPTURE);
    return;
  }
  // Read again: others have stored later times while this thread came to the Guard.
  step(guard, context, context_id, shim::monotonic_ns());
  thread->context = context;
  thread->stamp = stamp_.load(std::memory_order_relaxed);
}

/// What a launch of `context` is the place for.
void PcSampling::step(const Guard& guard, CUcontext context, uint32_t context_id,
                      uint64_t now_ns) noexcept {
  bury(guard);
  PcContext* own = find(context);
  if (own != nullptr) last_launch_ns_[index_of(*own)] = now_ns;
  if (own != nullptr && must_end(*own)) {
    end(guard, *own);
    own = nullptr;
  }
  end_strays(guard, now_ns);
  if (config_.tier == GPUPROF_TIER_OFF) return;
  if (config_.tier == GPUPROF_TIER_SERIALIZED) close_stray_window(guard, now_ns);
  if (own == nullptr) {
    begin(guard, context, context_id, now_ns);
    return;
  }
  if (heal_due_[index_of(*own)]) heal(guard, *own, now_ns);
  if (!own->on()) return;
  if (config_.tier == GPUPROF_TIER_SERIALIZED) {
    step_window(guard, *own, now_ns);
    return;
  }
  if (round_ != drained_round_[index_of(*own)]) drain(guard, *own, true, now_ns);
  // Contexts whose own launches do not come by. They may be about to: to those threads this one is
  // a helper thread, on which a switch would hang.
  for (PcContext& other : contexts_) {
    if (other.on() && round_ - drained_round_[index_of(other)] >= 2) {
      drain(guard, other, false, now_ns);
    }
  }
}

void PcSampling::begin(const Guard& guard, CUcontext context, uint32_t context_id, uint64_t now_ns,
                       bool launched) noexcept {
  // Neither after a fatal error in the call before, nor where nobody wants it any more.
  if (arming().phase() == Phase::kInert || config_.tier == GPUPROF_TIER_OFF) return;
  if (context == nullptr || is_refused_context(context_id)) return;
  uint32_t device = 0;
  const CUptiResult answer = guard.device_of(context, &device);
  if (answer != CUPTI_SUCCESS || device >= kMaxDevices) {
    shim::log_line("context %u: device unknown (%d)", context_id, answer);
    refuse_context(context_id);
    return;
  }
  if (devices_[device].refused) return;
  gpuprof_device_v1 facts;
  // Its compute capability decides about the configuration. The service thread asks for it.
  if (!shim::known_device(device, &facts)) return;
  if (const PcContext* other = on_device(device)) {
    refuse_context(context_id);
    snprintf(note_, sizeof note_, "context %u is not sampled: GPU %u is, in context %u", context_id,
             device, other->id());
    publish();
    return;
  }
  unstick(guard, context);
  PcContext* slot = free_slot();
  if (slot == nullptr) return;
  around_.compute_major = facts.compute_major;
  around_.compute_minor = facts.compute_minor;
  PcRefusal refusal;
  if (facts.compute_major < 7) {
    refuse(&refusal, GPUPROF_PC_REASON_GPU_TOO_OLD, false,
           "PC sampling needs compute capability 7.0, GPU %u has %u.%u", device,
           facts.compute_major, facts.compute_minor);
    refuse_device(device, refusal, now_ns);
    return;
  }
  if (!granted(device)) {
    if (launched) want(device);
    return;
  }
  publish_claims(device);
  bool enabled = false;
  {
    const Switching switching(*this);
    enabled =
        slot->enable(guard, context, context_id, device, version_, config_, around_, &refusal);
  }
  if (!enabled) {
    refuse_device(device, refusal, now_ns);
    return;
  }
  ++contexts_on_;
  first_window_ = true;
  enabled_ns_ = now_ns;
  last_period_ = slot->period();
  withdraw(device);
  if (config_.tier == GPUPROF_TIER_SERIALIZED && !window_.load(std::memory_order_relaxed)) {
    window_due_ns_.store(now_ns + kSettleNs, std::memory_order_relaxed);
  }
  drained_round_[index_of(*slot)] = round_;
  last_launch_ns_[index_of(*slot)] = now_ns;
  heal_due_[index_of(*slot)] = false;
  Device& state = devices_[device];
  state.back_off_ns = 0;
  state.failed_drains = 0;
  changed();
  publish();
}

void PcSampling::end(const Guard& guard, PcContext& on) noexcept {
  disable(guard, on, true);
  gone();
}

/// A window of it is over when CUPTI has answered: until then a launch that must not be in one
/// waits.
void PcSampling::disable(const Guard& guard, PcContext& on, bool drain_first) noexcept {
  const bool serializing = on.serializing();
  {
    const Switching switching(*this);
    on.disable(guard, drain_first);
  }
  if (serializing) window_over();
}

/// A context went off: its GPU is free for another one.
void PcSampling::gone() noexcept {
  // A fatal error inside the call that switched it off has forgotten all of them.
  if (contexts_on_ != 0) --contexts_on_;
  refused_count_ = 0;
  note_[0] = '\0';
  changed();
  publish();
}

/// Forgets the contexts in dead_, without a call: they are gone.
void PcSampling::bury(const Guard& /*guard*/) noexcept {
  for (std::atomic<CUcontext>& slot : dead_) {
    if (slot.load(std::memory_order_relaxed) == nullptr) continue;
    CUcontext context = slot.exchange(nullptr);
    forget_stuck(context);
    PcContext* own = find(context);
    if (own == nullptr) continue;
    shim::count_drop(GPUPROF_DROP_PC_LOST_DRAINS);
    if (own->serializing()) window_over();
    own->forget();
    gone();
  }
}

/// Whether nothing was launched in `on` for so long that a launch of another context may switch it.
bool PcSampling::is_stray(const PcContext& on, uint64_t now_ns) const noexcept {
  return shim::elapsed_ns(last_launch_ns_[index_of(on)], now_ns) >= kStrayNs;
}

/// Contexts that nothing is launched in any more are switched off in the launches of others.
void PcSampling::end_strays(const Guard& guard, uint64_t now_ns) noexcept {
  if (contexts_on_ == 0 || shim::elapsed_ns(changed_ns_, now_ns) < kStrayNs) return;
  for (PcContext& other : contexts_) {
    if (other.on() && must_end(other) && is_stray(other, now_ns)) end(guard, other);
  }
}

void PcSampling::unstick(const Guard& guard, CUcontext context) noexcept {
  bury(guard);
  PcContext* on = find_stuck(context);
  if (on == nullptr) return;
  {
    const Switching switching(*this);
    on->unstick(guard);
  }
  note_stuck();
  publish_claims();
}

bool PcSampling::switch_off(const Guard& guard, CUcontext context, uint64_t now_ns) noexcept {
  launched_.store(true, std::memory_order_relaxed);
  bury(guard);
  if (contexts_on_ == 0) return true;
  if (switching_) return false;
  if (PcContext* own = find(context)) end(guard, *own);
  if (config_.tier == GPUPROF_TIER_OFF) end_strays(guard, now_ns);
  return contexts_on_ == 0;
}

void PcSampling::on_tracing(const Guard& guard, CUcontext context, uint32_t context_id) noexcept {
  if (!attention() || switching_) return;
  launched_.store(true, std::memory_order_relaxed);
  step(guard, context, context_id, shim::monotonic_ns());
}

// --- contexts and modules ------------------------------------------------------------------------

void PcSampling::on_context_created(CUcontext context) noexcept {
  if (!attention()) return;
  const CallbackScope scope;
  const uint64_t now_ns = shim::monotonic_ns();
  const Guard guard = Guard::try_lock();
  if (!guard.held() || switching_ || arming().phase() != Phase::kTracing) return;
  const CaptureTracker::Switch allowed(arming().captures(), now_ns);
  if (!allowed.allowed()) return;  // its first launch is another occasion
  bury(guard);                     // the new one may have the handle of one that is gone
  uint32_t id = 0;
  if (config_.tier == GPUPROF_TIER_OFF || guard.context_id_of(context, &id) != CUPTI_SUCCESS) {
    return;
  }
  begin(guard, context, id, now_ns, false);
}

void PcSampling::on_context_destroying(CUcontext context) noexcept {
  if (!attention() && !stuck()) return;
  const CallbackScope scope;
  const Guard guard = Guard::try_lock_for(kDestroyPatienceNs);
  if (!guard.held()) {
    shim::count_pc(GPUPROF_PC_COUNT_SKIPPED_GUARD);
    for (std::atomic<CUcontext>& slot : dead_) {
      CUcontext none = nullptr;
      if (slot.compare_exchange_strong(none, context)) break;
    }
    return;
  }
  // No disable: here it was never measured, and destroying a context ends its sampling
  // (cupti_pcsampling.h: disable is for applications that do not destroy it).
  if (PcContext* own = find(context); own != nullptr && !switching_) {
    if (own->serializing()) window_over();
    (void)own->drain(guard);
    own->forget();
    gone();
  } else {
    refused_count_ = 0;
    changed();
  }
  // Whose device it was is not asked: launches of the others say again what they want.
  withdraw_all();
  forget_stuck(context);
}

void PcSampling::on_module_change(CUcontext context) noexcept {
  if (!attention()) return;
  const CallbackScope scope;
  const Guard guard = Guard::try_lock_for(kPatienceNs);
  if (!guard.held()) {
    shim::count_pc(GPUPROF_PC_COUNT_SKIPPED_GUARD);
    return;
  }
  if (arming().captures().in_progress(shim::monotonic_ns())) {
    shim::count_pc(GPUPROF_PC_COUNT_SKIPPED_CAPTURE);
    return;
  }
  PcContext* own = find(context);
  if (own == nullptr || switching_) return;
  // Serialized: whose a sample is was settled when its kernel ended.
  if (own->config().tier == GPUPROF_TIER_SERIALIZED) return;
  drain(guard, *own, false, shim::monotonic_ns());
}

// --- drains --------------------------------------------------------------------------------------

/// `may_switch`: in a launch-exit callback, where sampling may be switched.
void PcSampling::drain(const Guard& guard, PcContext& on, bool may_switch,
                       uint64_t now_ns) noexcept {
  const uint32_t index = index_of(on);
  drained_round_[index] = round_;
  Drain result = Drain::kOk;
  {
    const Switching switching(*this);
    result = on.drain(guard);
  }
  handle(guard, on, result, may_switch, now_ns);
}

void PcSampling::handle(const Guard& guard, PcContext& on, Drain result, bool may_switch,
                        uint64_t now_ns) noexcept {
  Device& device = devices_[on.device()];
  switch (result) {
    case Drain::kOk:
      device.failed_drains = 0;
      return;
    case Drain::kOutOfMemory:
      if (may_switch) {
        heal(guard, on, now_ns);
      } else {
        heal_due_[index_of(on)] = true;
        changed();
      }
      return;
    case Drain::kFailed:
      if (++device.failed_drains < kMostFailedDrains || !may_switch) return;
      PcRefusal refusal;
      refuse(&refusal, GPUPROF_PC_REASON_FAILED, true,
             "cuptiPCSamplingGetData failed %u times in a row; tried again", device.failed_drains);
      fail(guard, on, refusal, now_ns);
      return;
  }
}

/// Off, in a launch-exit callback, with a reason that may heal.
void PcSampling::fail(const Guard& guard, PcContext& on, const PcRefusal& refusal,
                      uint64_t now_ns) noexcept {
  const uint32_t device = on.device();
  if (refusal.deaf) {  // no call any more
    on.forget();
    gone();
  } else {
    switch_off_undrained(guard, on);
  }
  refuse_device(device, refusal, now_ns);
}

void PcSampling::switch_off_undrained(const Guard& guard, PcContext& on) noexcept {
  disable(guard, on, false);
  gone();
}

/// After OUT_OF_MEMORY a context gives no samples any more, whatever is asked of it: 7,800 starts
/// in a row gave none. Only a new enable helps.
void PcSampling::heal(const Guard& guard, PcContext& on, uint64_t now_ns) noexcept {
  const uint32_t number = on.device();
  Device& device = devices_[number];
  heal_due_[index_of(on)] = false;
  if (shim::elapsed_ns(device.healed_ns, now_ns) > kHealForgetNs) device.heals = 0;
  const CUcontext context = on.handle();
  const uint32_t id = on.id();
  if (device.heals >= kMostHeals) {
    PcRefusal refusal;
    refuse(
        &refusal, GPUPROF_PC_REASON_OUT_OF_MEMORY, false,
        "cuptiPCSamplingGetData answered 8 (out of memory) again after PC sampling of GPU %u was "
        "enabled anew %u times; a longer period (--pc-period) fills the buffer more slowly",
        number, device.heals);
    fail(guard, on, refusal, now_ns);
    return;
  }
  switch_off_undrained(guard, on);
  ++device.heals;
  device.healed_ns = now_ns;
  begin(guard, context, id, now_ns);
  if (find(context) != nullptr) shim::count_pc(GPUPROF_PC_COUNT_HEALED);
}

}  // namespace gpuprof::cupti

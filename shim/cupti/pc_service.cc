// SPDX-License-Identifier: Apache-2.0
// PcSampling on the service thread and at the end, its tables, and the status page.
#include "shim/core/clock.h"
#include "shim/core/log.h"
#include "shim/core/metadata.h"
#include "shim/core/status.h"
#include "shim/core/thread.h"
#include "shim/cupti/arming.h"
#include "shim/cupti/pc_sampling.h"
#include "shim/cupti/pc_setup.h"

namespace gpuprof::cupti {

// --- service thread ------------------------------------------------------------------------------

void PcSampling::round(const shim::Demand& demand, uint64_t now_ns) noexcept {
  const bool asked =
      demand.tier == GPUPROF_TIER_CONTINUOUS || demand.tier == GPUPROF_TIER_SERIALIZED;
  if (!asked && !wanted() && !attention()) return;
  if (asked) prepare();
  const Guard guard = Guard::lock();
  const Phase phase = arming().phase();
  if (phase == Phase::kInert) return;
  PcConfig config;
  if (asked && (phase == Phase::kArming || phase == Phase::kTracing)) {
    config.tier = demand.tier;
    config.period = demand.request.pc_period;
    const uint32_t duty = demand.request.pc_duty;
    duty_.store(duty != 0 ? duty : kDefaultDuty, std::memory_order_relaxed);
  }
  const bool serialized = asked && demand.tier == GPUPROF_TIER_SERIALIZED;
  bool news = !serialized && serialized_refusal_.reason != GPUPROF_PC_REASON_NONE;
  if (!serialized) serialized_refusal_ = PcRefusal{};
  if (serialized && seen() != 0) {
    news = refuse_serialized();
    config = PcConfig{};
  }
  if (news) publish();
  follow(config, asked, now_ns);
  follow_grant(asked ? demand.request.pc_grant : shim::PcGrant{});
  retry(now_ns);
  drain_idle(guard, now_ns);
}

/// What can only be done off the application's threads: memory, files, the loader.
void PcSampling::prepare() noexcept {
  if (prepared_) return;
  {
    const Guard guard = Guard::lock();
    const char* missing = guard.missing_pc_function();
    if (version_ < kOldestVersion) {
      refuse(&impossible_, GPUPROF_PC_REASON_CUPTI_TOO_OLD, false,
             "CUPTI's API version is %u: below %u (CUDA 12.9) it cannot sample while it traces "
             "kernels; point GPU_PROFILED_CUPTI_PATH at a newer libcupti",
             version_, kOldestVersion);
    } else if (missing != nullptr) {
      refuse(&impossible_, GPUPROF_PC_REASON_MISSING_SYMBOL, false, "libcupti lacks %s", missing);
    }
  }
  if (impossible_.reason != GPUPROF_PC_REASON_NONE) {
    prepared_ = true;
    return;
  }
  uint32_t devices = 0;
  gpuprof_device_v1 facts;
  for (uint32_t id = 0; id < shim::kMaxDevices; ++id) devices += shim::known_device(id, &facts);
  if (devices == 0) return;  // no launch yet
  const void* cupti = nullptr;
  {
    const Guard guard = Guard::lock();
    cupti = guard.library_address();
  }
  preload_perfworks(cupti);
  const PcSurroundings around = read_surroundings();
  const Guard guard = Guard::lock();
  around_ = around;
  for (uint32_t i = 0; i < devices && i < kMaxContexts; ++i) {
    if (contexts_[i].buffers().create() == shim::Status::kNoMemory && i == 0) {
      refuse(&impossible_, GPUPROF_PC_REASON_OUT_OF_MEMORY, false,
             "no memory for the records of PC sampling");
    }
  }
  changed();
  prepared_ = true;
}

void PcSampling::follow(const PcConfig& config, bool asked, uint64_t now_ns) noexcept {
  const bool possible = impossible_.reason == GPUPROF_PC_REASON_NONE;
  const bool differs = config != config_;
  if (differs) {
    config_ = config;
    changed_ns_ = now_ns;
    note_[0] = '\0';
    for (Device& device : devices_) device = Device{};
    refused_count_ = 0;
    ungranted_ = 0;
    changed();
  }
  const bool was_wanted = wanted();
  wanted_.store(asked && possible, std::memory_order_relaxed);
  if (differs || was_wanted != wanted() || (asked && !possible)) publish();
}

void PcSampling::retry(uint64_t now_ns) noexcept {
  for (Device& device : devices_) {
    if (!device.refused || device.retry_at_ns == 0 || now_ns < device.retry_at_ns) continue;
    device.refused = false;
    changed();
  }
}

/// Makes the launches drain, once in 100 ms, and drains itself where there were none.
void PcSampling::drain_idle(const Guard& guard, uint64_t now_ns) noexcept {
  if (contexts_on_ == 0 || shim::elapsed_ns(last_round_ns_, now_ns) < kRoundNs) return;
  last_round_ns_ = now_ns;
  bury(guard);
  const bool launched = launched_.exchange(false, std::memory_order_relaxed);
  if (!launched && !arming().captures().in_progress(now_ns)) {
    for (PcContext& on : contexts_) {
      const bool continuous = on.on() && on.config().tier == GPUPROF_TIER_CONTINUOUS;
      if (continuous) drain(guard, on, false, now_ns);
    }
  }
  ++round_;
  changed();
}

void PcSampling::finish() noexcept {
  if (!attention()) return;
  wanted_.store(false, std::memory_order_relaxed);
  // attention() stays: other threads may still launch, and destroy contexts, while this waits.
  bool on = false;
  uint64_t wait_ns = kDecoderNs;
  {
    const Guard guard = Guard::lock();
    config_ = PcConfig{};
    changed();
    on = contexts_on_ != 0;
    const uint64_t since_ns = shim::elapsed_ns(enabled_ns_, shim::monotonic_ns());
    if (since_ns + wait_ns < kFirstDecoderNs) wait_ns = kFirstDecoderNs - since_ns;
  }
  if (!on || arming().phase() == Phase::kInert) return;
  const std::atomic<uint32_t> never{0};
  (void)shim::futex_wait(never, 0, wait_ns);
  const Guard guard = Guard::lock();
  bury(guard);
  for (PcContext& context : contexts_) {
    if (arming().phase() == Phase::kInert) return;
    if (!context.on()) continue;
    // No Stop: on this thread it hangs. What a window still open held is gone, and told.
    if (context.serializing()) shim::count_drop(GPUPROF_DROP_PC_LOST_DRAINS);
    (void)context.drain(guard);
    context.forget();
  }
  contexts_on_ = 0;
  attention_.store(false, std::memory_order_relaxed);
  watching_.store(false, std::memory_order_relaxed);
}

void PcSampling::go_inert() noexcept {
  wanted_.store(false, std::memory_order_relaxed);
  attention_.store(false, std::memory_order_relaxed);
  watching_.store(false, std::memory_order_relaxed);
  const Guard guard = Guard::try_lock();
  if (!guard.held()) return;
  for (PcContext& context : contexts_) context.forget();
  contexts_on_ = 0;
  note_stuck();
  config_ = PcConfig{};
  // A reader that comes after the exit still wants to know why nothing was sampled.
  if (status_.state != GPUPROF_PC_REFUSED) {
    status_ = shim::PcStatus{};
    status_.period = last_period_;
    shim::set_pc_status(status_, nullptr);
  }
}

// --- tables and the page -------------------------------------------------------------------------

PcContext* PcSampling::find(CUcontext context) noexcept {
  for (PcContext& candidate : contexts_) {
    if (candidate.on() && candidate.handle() == context) return &candidate;
  }
  return nullptr;
}

PcContext* PcSampling::find_stuck(CUcontext context) noexcept {
  for (PcContext& candidate : contexts_) {
    if (candidate.stuck() && candidate.handle() == context) return &candidate;
  }
  return nullptr;
}

/// A context that CUPTI refused to switch off is gone, and its sampling with it.
void PcSampling::forget_stuck(CUcontext context) noexcept {
  PcContext* gone = find_stuck(context);
  if (gone == nullptr) return;
  gone->forget();
  note_stuck();
  publish_claims();
}

void PcSampling::note_stuck() noexcept {
  bool any = false;
  for (const PcContext& candidate : contexts_) any |= candidate.stuck();
  stuck_.store(any, std::memory_order_relaxed);
}

PcContext* PcSampling::free_slot() noexcept {
  for (PcContext& candidate : contexts_) {
    if (!candidate.on() && !candidate.stuck() && candidate.buffers().exists()) return &candidate;
  }
  return nullptr;
}

const PcContext* PcSampling::on_device(uint32_t device) const noexcept {
  for (const PcContext& candidate : contexts_) {
    if (candidate.on() && candidate.device() == device) return &candidate;
  }
  return nullptr;
}

void PcSampling::refuse_device(uint32_t number, const PcRefusal& refusal,
                               uint64_t now_ns) noexcept {
  Device& device = devices_[number];
  device.refused = true;
  device.retry_at_ns = 0;
  if (refusal.heals) {
    device.back_off_ns = device.back_off_ns == 0 ? kFirstRetryNs : device.back_off_ns * 2;
    if (device.back_off_ns > kLongestRetryNs) device.back_off_ns = kLongestRetryNs;
    device.retry_at_ns = now_ns + device.back_off_ns;
  }
  last_refusal_ = refusal;
  withdraw(number);
  shim::log_line("GPU %u is not sampled: %s", number, refusal.text);
  publish();
  if (refusal.deaf) {
    arming().lose(GPUPROF_REASON_QUIRK,
                  "CUPTI traces nothing in this process since it refused to start PC sampling; "
                  "restart the process to profile it");
  }
}

void PcSampling::refuse_context(uint32_t context_id) noexcept {
  shim::count_pc(GPUPROF_PC_COUNT_CONTEXTS_REFUSED);
  if (refused_count_ < kRefusedContexts) refused_contexts_[refused_count_++] = context_id;
}

bool PcSampling::is_refused_context(uint32_t context_id) const noexcept {
  for (uint32_t i = 0; i < refused_count_; ++i) {
    if (refused_contexts_[i] == context_id) return true;
  }
  return false;
}

gpuprof_tier PcSampling::active_tier() const noexcept {
  for (const PcContext& context : contexts_) {
    if (context.on()) return context.config().tier;
  }
  return GPUPROF_TIER_TRACE;
}

void PcSampling::publish() noexcept {
  bool refused = false;
  for (const Device& device : devices_) refused |= device.refused;
  const bool possible = impossible_.reason == GPUPROF_PC_REASON_NONE;
  shim::PcStatus status;
  status.contexts = contexts_on_;
  status.period = last_period_;
  const char* text = note_[0] == '\0' ? nullptr : note_;
  if (contexts_on_ != 0) {
    status.state = GPUPROF_PC_ON;
    if (config_.tier == GPUPROF_TIER_OFF) text = "disabled in the next kernel launch";
  } else if (!possible) {
    status.state = GPUPROF_PC_REFUSED;
  } else if (config_.tier != GPUPROF_TIER_OFF) {
    status.state = refused ? GPUPROF_PC_REFUSED : GPUPROF_PC_WAITING;
    if (!refused) text = "enabled in the next kernel launch";
  }
  if (!possible) {
    status.reason = impossible_.reason;
    text = impossible_.text;
  } else if (serialized_refusal_.reason != GPUPROF_PC_REASON_NONE) {
    if (contexts_on_ == 0) status.state = GPUPROF_PC_REFUSED;
    status.reason = serialized_refusal_.reason;
    text = serialized_refusal_.text;
  } else if (refused) {
    status.reason = last_refusal_.reason;
    text = last_refusal_.text;
  } else if (ungranted_ != 0) {
    status.reason = GPUPROF_PC_REASON_GPU_TAKEN;
    text = taken_text_;
  }
  note_stuck();
  publish_claims();
  attention_.store(contexts_on_ != 0 || (possible && config_.tier != GPUPROF_TIER_OFF),
                   std::memory_order_relaxed);
  // An open window is watched until it is closed, whatever is wanted since.
  watching_.store(config_.tier == GPUPROF_TIER_SERIALIZED || window_.load(),
                  std::memory_order_relaxed);
  if (config_.tier != GPUPROF_TIER_SERIALIZED) {
    window_due_ns_.store(kNever, std::memory_order_relaxed);
  }
  status_ = status;
  shim::set_pc_status(status, text);
  arming().show_tracing();
}

}  // namespace gpuprof::cupti

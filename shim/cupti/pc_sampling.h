// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "proto/memfd_layout.h"
#include "shim/core/lease.h"
#include "shim/core/status.h"
#include "shim/cupti/guard.h"
#include "shim/cupti/pc_context.h"
#include "shim/cupti/pc_reason.h"
#include "shim/cupti/pc_sight.h"

namespace gpuprof::cupti {

/// A thread's memory of PC sampling: plain data, valid when zeroed.
struct PcThreadState {
  const void* context;  // of its last launch that had nothing to do here
  uint32_t stamp;       // PcSampling's at that moment
};

/// The tiers of PC sampling: which contexts are sampled, and who switches and drains them.
///
/// What was measured dictates who does what. Enable, disable, start and stop on a helper thread
/// hung the application for good, and in the launch-EXIT callback on the application's own thread
/// ran clean, as did enable in CONTEXT_CREATED: so the service thread only says what is wanted
/// (round()) and the next launch of each context does it. Drains belong there too; the service
/// thread drains while nothing launches. Kernel activity must be on first. One context of a GPU can
/// be sampled at a time: a second one is refused and counted. Nothing happens in a launch that is
/// captured, nor while any stream is.
///
/// The serialized tier samples in windows of kWindowNs, one context at a time, for a share of the
/// time (kDefaultDuty, or what the controller asks for). In a window kernels run one after the
/// other, so a kernel that waits for another rank must not run in one: what a launch is shows in
/// its ENTER callback (PcSight), and there the window is closed before the kernel is launched, and
/// none is opened any more in this process. What that cannot do: it needs the Guard and no stream
/// under capture (tried for kStopPatienceNs, counted), it knows such kernels by their names only,
/// and one that was launched before the tier was asked for and still waits is not seen (windows
/// begin kSettleNs later).
///
/// Another process that samples the GPU would end this one's tracing (docs/adr/0020), so a GPU is
/// enabled only while the controller grants it. A launch says which it wants; a context that was
/// only created says nothing, so that an idle one takes no GPU from the process that works there.
///
/// A launch costs one relaxed load while no tier of PC sampling is wanted or on (attention()), and
/// otherwise a comparison or two: `stamp_` changes whenever a thread has to look again.
///
/// Threads: everything but the atomics is guarded by the Guard.
class PcSampling {
 public:
  static constexpr uint32_t kMaxContexts = 16;  // one a GPU
  static constexpr uint32_t kMaxDevices = 64;
  static constexpr uint32_t kNoDevice = UINT32_MAX;
  /// Below API 27 kernel activity and PC sampling exclude each other (12.8U1's release notes; 12.8
  /// and 12.8U1 both say 26).
  static constexpr uint32_t kOldestVersion = 27;
  /// A context that had no launch for so long is switched off in a launch of another one.
  static constexpr uint64_t kStrayNs = 1'000'000'000;
  static constexpr uint64_t kFirstRetryNs = 2'000'000'000;
  static constexpr uint64_t kLongestRetryNs = 300'000'000'000;
  /// CUPTI's decoder wakes every 100 ms, and not in the first 150 ms after an enable; what it has
  /// not seen is not in a drain. The exit waits for it, since short programs have nothing else.
  static constexpr uint64_t kDecoderNs = 110'000'000;
  static constexpr uint64_t kFirstDecoderNs = 200'000'000;
  /// OUT_OF_MEMORY is healed so often; the next one in kHealForgetNs switches the device off.
  static constexpr uint32_t kMostHeals = 2;
  static constexpr uint64_t kHealForgetNs = 60'000'000'000;
  static constexpr uint32_t kMostFailedDrains = 10;
  static constexpr uint32_t kRefusedContexts = 32;
  /// How long a module's or context's callback tries for the Guard: what it skips is lost or mixed.
  static constexpr uint64_t kPatienceNs = 50'000'000;
  /// For a context that goes away: an enable takes 67 to 117 ms, a drain on the service thread up
  /// to 390 ms, and the context must not go under either.
  static constexpr uint64_t kDestroyPatienceNs = 1'000'000'000;
  /// The same for a launch that must not happen in a window: once in a process, and what hangs on
  /// it is the application. Long enough for a holder that lost its CPU on a busy machine.
  static constexpr uint64_t kStopPatienceNs = 1'000'000'000;
  static constexpr uint64_t kWindowNs = 50'000'000;
  /// A launch-bound program stands nearly still in a window (one launch in 0.8 ms on an H200), so
  /// the share of the time that is spent in them bounds what they cost: 4 %, per mille.
  static constexpr uint32_t kDefaultDuty = 40;
  /// The longest pause after an enable's first window, which lasts 120 to 400 ms on an H200: the
  /// first serialized launch of a kernel takes its time.
  static constexpr uint64_t kFirstPauseNs = 1'200'000'000;
  static constexpr uint64_t kSettleNs = 1'000'000'000;
  /// Drains are due once in a round of the service thread, which may be woken in between.
  static constexpr uint64_t kRoundNs = 80'000'000;

  constexpr PcSampling() = default;

  /// Before anything else.
  void configure(uint32_t version) noexcept;

  /// Whether launches have something to do here. Any thread.
  [[nodiscard]] bool attention() const noexcept {
    return attention_.load(std::memory_order_relaxed);
  }
  /// Whether a tier of PC sampling is asked for: module images are worth keeping. Any thread.
  [[nodiscard]] bool wanted() const noexcept { return wanted_.load(std::memory_order_relaxed); }
  /// Contexts that are sampled. With the Guard.
  [[nodiscard]] uint32_t contexts_on() const noexcept { return contexts_on_; }
  /// Their tier, TRACE if there is none. With the Guard.
  [[nodiscard]] gpuprof_tier active_tier() const noexcept;

  // Callbacks on the application's thread.
  /// A kernel or graph launch leaves, in Phase::kTracing, with attention().
  void on_launch_exit(CUcontext context, uint32_t context_id, bool captured,
                      PcThreadState* thread) noexcept {
    if (thread->context == context && thread->stamp == stamp_.load(std::memory_order_relaxed) &&
        !window_due()) {
      return;
    }
    look(context, context_id, captured, thread);
  }
  /// Whether launches must be looked at before they happen. Any thread.
  [[nodiscard]] bool watching() const noexcept { return watching_.load(std::memory_order_relaxed); }
  /// A launch enters, with watching().
  void on_launch_enter(Domain domain, uint32_t id, Call call,
                       const CUpti_CallbackData& data) noexcept;
  /// Something that forbids the serialized tier was seen (bits of PcSight). Any thread.
  void saw(uint32_t sight) noexcept {
    if ((seen_.load(std::memory_order_relaxed) & sight) != sight) seen_.fetch_or(sight);
  }
  [[nodiscard]] uint32_t seen() const noexcept { return seen_.load(std::memory_order_relaxed); }
  void on_context_created(CUcontext context) noexcept;
  void on_context_destroying(CUcontext context) noexcept;
  /// A module was loaded or is about to go: instructions of two modules must not share a drain.
  void on_module_change(CUcontext context) noexcept;

  // In Arming's launch-exit callback.
  /// Before kernel activity is enabled: it is refused while CUPTI samples.
  void unstick(const Guard& guard, CUcontext context) noexcept;
  /// A context could not be switched off. Any thread.
  [[nodiscard]] bool stuck() const noexcept { return stuck_.load(std::memory_order_relaxed); }
  /// Disarming: disables what may be disabled here. True if nothing is left on.
  bool switch_off(const Guard& guard, CUcontext context, uint64_t now_ns) noexcept;
  /// Tracing has just begun in a launch of `context`.
  void on_tracing(const Guard& guard, CUcontext context, uint32_t context_id) noexcept;

  // Service thread.
  /// Whether a window is open in which a flush must wait: a launch that is to close it needs the
  /// Guard, and the flush may take long, or wait for that launch's callback. Not for ever: a window
  /// stays open while nothing is launched, and the last records are wanted then.
  [[nodiscard]] bool holds_flushes(const Guard& guard, uint64_t now_ns) const noexcept;
  /// What is wanted, and the drains that nobody else does; once a round.
  void round(const shim::Demand& demand, uint64_t now_ns) noexcept;
  /// The last drain, at exit.
  void finish() noexcept;

  /// No call of CUPTI any more. Any thread.
  void go_inert() noexcept;

 private:
  struct Device {
    bool refused = false;
    uint32_t heals = 0;
    uint32_t failed_drains = 0;
    uint64_t healed_ns = 0;
    uint64_t retry_at_ns = 0;  // 0: not tried again
    uint64_t back_off_ns = 0;
  };

  /// Around a call of PC sampling, with the Guard.
  class Switching {
   public:
    explicit Switching(PcSampling& owner) noexcept : owner_(owner), before_(owner.switching_) {
      owner_.switching_ = true;
    }
    ~Switching() { owner_.switching_ = before_; }
    Switching(const Switching&) = delete;
    Switching& operator=(const Switching&) = delete;

   private:
    PcSampling& owner_;
    bool before_;
  };

  void look(CUcontext context, uint32_t context_id, bool captured, PcThreadState* thread) noexcept;
  void step(const Guard& guard, CUcontext context, uint32_t context_id, uint64_t now_ns) noexcept;
  /// `launched`: in a launch, which may ask for a GPU that is not granted.
  void begin(const Guard& guard, CUcontext context, uint32_t context_id, uint64_t now_ns,
             bool launched = true) noexcept;
  void end(const Guard& guard, PcContext& on) noexcept;
  void disable(const Guard& guard, PcContext& on, bool drain_first) noexcept;
  void switch_off_undrained(const Guard& guard, PcContext& on) noexcept;
  void gone() noexcept;
  void bury(const Guard& guard) noexcept;
  [[nodiscard]] bool is_stray(const PcContext& on, uint64_t now_ns) const noexcept;
  void end_strays(const Guard& guard, uint64_t now_ns) noexcept;
  void drain(const Guard& guard, PcContext& on, bool may_switch, uint64_t now_ns) noexcept;
  void handle(const Guard& guard, PcContext& on, Drain result, bool may_switch,
              uint64_t now_ns) noexcept;
  void heal(const Guard& guard, PcContext& on, uint64_t now_ns) noexcept;
  void drain_idle(const Guard& guard, uint64_t now_ns) noexcept;
  [[nodiscard]] bool window_due() const noexcept;
  void step_window(const Guard& guard, PcContext& on, uint64_t now_ns) noexcept;
  void open_window(const Guard& guard, PcContext& on, uint64_t now_ns) noexcept;
  void close_window(const Guard& guard, PcContext& on, bool may_switch, uint64_t now_ns) noexcept;
  void window_over() noexcept;
  void close_stray_window(const Guard& guard, uint64_t now_ns) noexcept;
  void close_windows(const Guard& guard, uint64_t now_ns) noexcept;
  void fail(const Guard& guard, PcContext& on, const PcRefusal& refusal, uint64_t now_ns) noexcept;
  bool refuse_serialized() noexcept;
  void prepare() noexcept;
  void follow(const PcConfig& config, bool asked, uint64_t now_ns) noexcept;
  void follow_grant(const shim::PcGrant& grant) noexcept;
  [[nodiscard]] bool granted(uint32_t device) const noexcept;
  [[nodiscard]] bool must_end(const PcContext& on) const noexcept {
    return on.config() != config_ || !granted(on.device());
  }
  void want(uint32_t device) noexcept;
  void withdraw(uint32_t device) noexcept;
  void withdraw_all() noexcept;
  /// `enabling`: a device that is about to be enabled.
  void publish_claims(uint32_t enabling = kNoDevice) noexcept;
  void retry(uint64_t now_ns) noexcept;
  void refuse_device(uint32_t device, const PcRefusal& refusal, uint64_t now_ns) noexcept;
  void refuse_context(uint32_t context_id) noexcept;
  [[nodiscard]] bool is_refused_context(uint32_t context_id) const noexcept;
  PcContext* find(CUcontext context) noexcept;
  PcContext* find_stuck(CUcontext context) noexcept;
  void forget_stuck(CUcontext context) noexcept;
  void note_stuck() noexcept;
  PcContext* free_slot() noexcept;
  [[nodiscard]] const PcContext* on_device(uint32_t device) const noexcept;
  void publish() noexcept;
  void changed() noexcept { stamp_.fetch_add(1, std::memory_order_relaxed); }
  [[nodiscard]] uint32_t index_of(const PcContext& on) const noexcept {
    return static_cast<uint32_t>(&on - contexts_);
  }

  std::atomic<bool> attention_{false};
  std::atomic<bool> wanted_{false};
  std::atomic<bool> stuck_{false};
  /// Never 0, which a fresh thread's state has.
  std::atomic<uint32_t> stamp_{1};
  /// A launch came by since the last round, handled or put off.
  std::atomic<bool> launched_{false};

  // Serialized tier.
  static constexpr uint64_t kNever = UINT64_MAX;
  std::atomic<bool> watching_{false};
  std::atomic<uint32_t> seen_{0};
  /// A window is open or about to be. Stored before seen_ is read, as seen_ is before it: one of
  /// the launch that opens and the launch that forbids sees the other.
  std::atomic<bool> window_{false};
  /// Contexts that went away while the Guard could not be had: whoever has it next forgets them
  /// before any call for them.
  std::atomic<CUcontext> dead_[kMaxContexts] = {};
  /// When a launch opens or closes a window: CLOCK_MONOTONIC, kNever in the other tiers.
  std::atomic<uint64_t> window_due_ns_{kNever};
  std::atomic<uint32_t> duty_{kDefaultDuty};  // per mille, never 0

  // Set by configure().
  uint32_t version_ = 0;

  // Service thread only.
  bool prepared_ = false;
  uint64_t last_round_ns_ = 0;

  // Guarded by the Guard.
  PcConfig config_;  // what is wanted; tier OFF for none
  shim::PcGrant grant_;
  uint64_t ungranted_ = 0;  // devices that a launch wanted, as bits, until they are on
  shim::PcClaims claims_;   // as published
  PcSurroundings around_;
  PcContext contexts_[kMaxContexts];
  uint32_t drained_round_[kMaxContexts] = {};
  uint64_t last_launch_ns_[kMaxContexts] = {};  // as far as launches look: once a round
  bool heal_due_[kMaxContexts] = {};
  Device devices_[kMaxDevices];
  uint32_t refused_contexts_[kRefusedContexts] = {};
  uint32_t refused_count_ = 0;
  uint32_t contexts_on_ = 0;
  uint32_t round_ = 0;
  uint32_t last_period_ = 0;
  uint64_t changed_ns_ = 0;  // when config_ changed
  bool switching_ = false;   // inside a call of PC sampling: CUPTI's own launches come by here
  PcRefusal impossible_;     // of this process: no call is ever made
  PcRefusal last_refusal_;
  shim::PcStatus status_;         // as published
  PcRefusal serialized_refusal_;  // reason NONE: not refused
  uint64_t window_began_ns_ = 0;
  bool first_window_ = false;  // none has ended since the last enable
  uint64_t enabled_ns_ = 0;    // the last enable
  char note_[128] = {};        // worth knowing though sampling is on
  char taken_text_[128] = {};  // of the last device in ungranted_
};

/// The one of the process; constant-initialised and never destroyed.
PcSampling& pc_sampling() noexcept;

}  // namespace gpuprof::cupti

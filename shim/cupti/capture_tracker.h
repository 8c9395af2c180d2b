// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace gpuprof::cupti {

/// Knows, without a CUDA call, whether a stream capture is in progress.
///
/// Nothing of CUPTI may be switched in a launch whose stream is being captured (in the global mode
/// of capture an unsafe call on *any* thread breaks it), and asking the driver is forbidden in a
/// callback. Two independent signs are used:
///  1. A launch that is captured becomes a graph node, so RESOURCE/GRAPHNODE_CREATED fires on the
///     launching thread between the launch's ENTER and EXIT. That is exact for the launch itself
///     and needs no history: it also sees a capture that began before we subscribed.
///  2. Begin and end of capture are driver calls with ids of their own; from the ENTER of one that
///     we saw begin to its end nothing is switched on any thread.
/// A captured launch seen by (1) without a begin seen by (2) means that a capture was under way
/// when we subscribed; its end is waited for like any other, under the key "unknown".
///
/// A stream may be destroyed while it is captured, so that no end ever comes: an entry counts for
/// kMaxAgeNs at most, an unknown capture for kMaxUnknownAgeNs after its last launch, since an end
/// that matches a known begin does not end it. Threads: all functions from any thread, lock-free.
class CaptureTracker {
 public:
  static constexpr uint64_t kMaxAgeNs = 30'000'000'000;
  static constexpr uint64_t kMaxUnknownAgeNs = 2'000'000'000;
  static constexpr uint32_t kSlots = 32;

  constexpr CaptureTracker() = default;

  /// Around what switches something of CUPTI, with the Guard: a capture that begins now either sees
  /// it, and waits, or is seen by it.
  class Switch {
   public:
    Switch(CaptureTracker& captures, uint64_t now_ns) noexcept : captures_(captures) {
      captures_.switches_.fetch_add(1);
      allowed_ = !captures_.in_progress(now_ns);
    }
    ~Switch() { captures_.switches_.fetch_sub(1); }
    Switch(const Switch&) = delete;
    Switch& operator=(const Switch&) = delete;
    [[nodiscard]] bool allowed() const noexcept { return allowed_; }

   private:
    CaptureTracker& captures_;
    bool allowed_;
  };
  [[nodiscard]] bool switch_under_way() const noexcept { return switches_.load() != 0; }

  /// `thread` is in a call that begins a capture. A Switch that is made afterwards sees it.
  void entering(const void* thread, uint64_t now_ns) noexcept;
  /// It has left the call; begin() says before that what came of it.
  void entered(const void* thread) noexcept;
  /// A capture of `stream` began; `thread` tells per-thread default streams apart, which all have
  /// the handle CU_STREAM_PER_THREAD. `now_ns` is CLOCK_MONOTONIC.
  void begin(const void* stream, const void* thread, uint64_t now_ns) noexcept;
  /// It ended, whether or not the call succeeded: a failing end ends an invalidated capture too.
  void end(const void* stream, const void* thread) noexcept;
  /// A captured launch was seen.
  void saw_captured_launch(uint64_t now_ns) noexcept;
  /// Whether a capture is, or may be, in progress anywhere in the process.
  [[nodiscard]] bool in_progress(uint64_t now_ns) const noexcept;
  /// Forgets everything: nothing was observed while we were not subscribed.
  void reset() noexcept;

 private:
  static uintptr_t key(const void* stream, const void* thread) noexcept;
  static uintptr_t entering_key(const void* thread) noexcept;
  void add(uintptr_t wanted, uint64_t now_ns) noexcept;
  bool remove(uintptr_t wanted) noexcept;
  [[nodiscard]] static bool live(uint64_t since_ns, uint64_t now_ns,
                                 uint64_t max_age_ns = kMaxAgeNs) noexcept;

  struct Slot {
    std::atomic<uintptr_t> key{0};  // 0: free
    std::atomic<uint64_t> since_ns{0};
  };
  Slot slots_[kSlots];
  std::atomic<uint32_t> switches_{0};
  /// Last sign of a capture without a slot: begun before we looked, or more than kSlots at once.
  std::atomic<uint64_t> unknown_since_ns_{0};
};

}  // namespace gpuprof::cupti

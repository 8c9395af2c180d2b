// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace gpuprof::cupti {

/// Which callback of a launch to use.
///
/// A runtime launch (cudaLaunchKernel, <<<>>>) passes through a driver launch, whose callback has
/// the same correlation id, which is the one that the kernel's record carries: so the driver ids
/// alone see every launch, once. That held for 270,603 of 270,603 kernels on 12.8 to 13.0.1. CUPTI
/// 11.8 under driver 580 fires no driver launch callback at all, and with their ids on it gives all
/// kernels one correlation id: there it is the runtime ids alone. Whether another CUPTI is like it
/// is found out, depending on whether a runtime id may be switched off again (quirks.h):
///  - It may: both domains' launch ids start enabled; after kAgreed runtime launches that had their
///    driver callback inside, the runtime ids are switched off for good, and a single successful
///    runtime launch without one keeps both domains, copies and fills included.
///  - It may not: the rule is assumed, and contradicted by kUnexplained kernels without a single
///    driver launch callback.
/// With both domains each launch is counted once, by its id.
///
/// Judged is only a runtime call whose ENTER this thread has seen: ids are switched on one by one,
/// the driver's first, so a call that was under way then may come out without the driver callback
/// that it had. They are switched off the other way round for the same reason.
///
/// Threads: all but assume() from callbacks of any thread; lock-free.
class LaunchRule {
 public:
  static constexpr uint32_t kAgreed = 64;
  static constexpr uint32_t kUnexplained = 64;
  enum class Verdict : uint32_t { kChecking, kDriverOnly, kBothDomains, kRuntimeOnly };

  constexpr LaunchRule() = default;

  [[nodiscard]] Verdict verdict() const noexcept {
    return verdict_.load(std::memory_order_relaxed);
  }

  /// What is known of this CUPTI; before any callback.
  void assume(Verdict verdict) noexcept { verdict_.store(verdict, std::memory_order_relaxed); }

  /// A driver launch callback came. Every launch: one load.
  void saw_driver_launch() noexcept {
    if (!driver_seen_.load(std::memory_order_relaxed)) {
      driver_seen_.store(true, std::memory_order_relaxed);
    }
  }

  /// A record of a kernel that this arm should have seen being launched.
  void observe_execution() noexcept {
    if (driver_seen_.load(std::memory_order_relaxed)) return;
    if (unexplained_.fetch_add(1, std::memory_order_relaxed) + 1 < kUnexplained) return;
    Verdict expected = Verdict::kDriverOnly;
    verdict_.compare_exchange_strong(expected, Verdict::kBothDomains, std::memory_order_relaxed);
  }

  /// A driver call is at its EXIT; `last` is the calling thread's memory of what it counted last.
  static void observe_driver(uint32_t correlation, uint32_t* last) noexcept { *last = correlation; }

  /// A runtime call is at its EXIT, having succeeded; `entered`: the thread saw its ENTER. True if
  /// this callback is the launch's first, so that it must be counted; false if its driver callback
  /// was, or a runtime call nested in this one.
  bool observe_runtime(uint32_t correlation, bool entered, uint32_t* last) noexcept {
    // Until the service thread has switched the runtime ids off; `last` is not kept any more.
    if (verdict() == Verdict::kDriverOnly) return false;
    const bool nested = *last == correlation;
    *last = correlation;
    if (verdict() != Verdict::kChecking || !entered) return !nested;
    if (!nested) {
      verdict_.store(Verdict::kBothDomains, std::memory_order_relaxed);
    } else if (agreed_.fetch_add(1, std::memory_order_relaxed) + 1 == kAgreed) {
      Verdict expected = Verdict::kChecking;
      verdict_.compare_exchange_strong(expected, Verdict::kDriverOnly, std::memory_order_relaxed);
    }
    return !nested;
  }

 private:
  std::atomic<Verdict> verdict_{Verdict::kChecking};
  std::atomic<uint32_t> agreed_{0};
  std::atomic<uint32_t> unexplained_{0};
  std::atomic<bool> driver_seen_{false};
};

}  // namespace gpuprof::cupti

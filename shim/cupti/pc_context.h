// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "proto/memfd_layout.h"
#include "shim/core/pc_batch.h"
#include "shim/cupti/guard.h"
#include "shim/cupti/pc_buffers.h"
#include "shim/cupti/pc_reason.h"

namespace gpuprof::cupti {

/// How a context is sampled.
struct PcConfig {
  gpuprof_tier tier = GPUPROF_TIER_OFF;  // CONTINUOUS or SERIALIZED
  uint32_t period = 0;                   // log2 cycles asked for, 0: our default

  friend bool operator==(const PcConfig& a, const PcConfig& b) = default;
};

/// What became of a drain.
enum class Drain : uint8_t { kOk, kOutOfMemory, kFailed };

/// PC sampling of one CUDA context: CUPTI's calls in their order, and the records that come out.
///
/// Which thread may call what is PcSampling's affair; every function that takes a Guard needs it
/// taken. A context that is off may be turned into another one.
class PcContext {
 public:
  /// 2^20 cycles: 1,150 samples a second and busy SM of an H200 (2^18 gave 4,625). Every kernel
  /// pays for sampling: at 2^18 a bare client of CUPTI lost 7 to 9 % of its launch rate
  /// (docs/hardware.md).
  static constexpr uint32_t kContinuousPeriod = 20;
  /// Windows are 4 % of the time.
  static constexpr uint32_t kSerializedPeriod = 18;
  static constexpr uint32_t kMostDisables = 5;
  /// CUPTI's own default is 512 MiB; 128 held 2^12 cycles with a drain every 100 ms, without a
  /// drop.
  static constexpr size_t kHardwareBufferBytes = 128u << 20;
  /// Compute capability 12.x (sm_120) stopped sampling when a client set period or buffer.
  static constexpr uint32_t kOwnDefaultsMajor = 12;

  constexpr PcContext() = default;

  [[nodiscard]] bool on() const noexcept { return on_; }
  [[nodiscard]] CUcontext handle() const noexcept { return handle_; }
  [[nodiscard]] uint32_t id() const noexcept { return id_; }
  [[nodiscard]] uint32_t device() const noexcept { return device_; }
  [[nodiscard]] uint32_t period() const noexcept { return period_; }
  [[nodiscard]] const PcConfig& config() const noexcept { return config_; }
  [[nodiscard]] bool window_open() const noexcept { return window_id_ != 0; }
  /// Kernels are serialized now: nothing may delay the end of the window.
  [[nodiscard]] bool serializing() const noexcept {
    return window_open() && config_.tier == GPUPROF_TIER_SERIALIZED;
  }
  PcBuffers& buffers() noexcept { return buffers_; }

  /// Enables and configures sampling; starts it and opens the window in the continuous tier. On
  /// failure the context is off again and *refusal says why.
  ///
  /// Always with start/stop control: without it CUPTI starts by itself in the next launch, tells
  /// nobody when that fails, and a disable lets the GPU write to memory that is unmapped already
  /// (Xid 31, CUDA error 719): once in 450 disables of one process, in 11 of 28 processes that
  /// sampled one GPU at a time; with it in none of 609 disables (docs/adr/0021).
  bool enable(const Guard& guard, CUcontext handle, uint32_t id, uint32_t device, uint32_t version,
              const PcConfig& config, const PcSurroundings& around, PcRefusal* refusal) noexcept;
  /// Fetches and emits what is there.
  Drain drain(const Guard& guard) noexcept;
  /// Stops, drains if `drain_first`, disables, emits what CUPTI puts into the registered buffer
  /// meanwhile, closes the window. The context is off then, and stuck() if CUPTI refused.
  void disable(const Guard& guard, bool drain_first) noexcept;
  /// CUPTI samples it still, and refuses kernel activity as long as it does. After a period of 2^12
  /// cycles Disable waited 0.4 to 2 s for what was pending and answered INVALID_PARAMETER once in
  /// five times (13.0, H200).
  [[nodiscard]] bool stuck() const noexcept { return stuck_; }
  /// Tries again to disable a stuck context, kMostDisables times in all.
  void unstick(const Guard& guard) noexcept;
  /// Opens a window. Nothing is open if CUPTI refuses; HARDWARE_BUSY then means that another
  /// process samples the GPU, and that CUPTI traces nothing any more (Arming::lose).
  CUptiResult start(const Guard& guard) noexcept;
  /// Ends it and drains what it gave if `fetch`; *result is the stop's own answer, and the window
  /// counts as open if that is an error.
  Drain stop(const Guard& guard, bool fetch, CUptiResult* result) noexcept;
  /// The context or CUPTI is gone: no call, the window is closed, nothing is stuck.
  void forget() noexcept;

 private:
  CUptiResult try_disable(const Guard& guard) noexcept;
  CUptiResult configure(const Guard& guard, uint32_t version, const PcSurroundings& around,
                        const char** step) noexcept;
  CUptiResult set_attributes(const Guard& guard, bool own_defaults, const char** step) noexcept;
  CUptiResult read_period(const Guard& guard) noexcept;
  CUptiResult read_stalls(const Guard& guard, uint32_t version) noexcept;
  void emit(shim::PcBatch& batch, const SamplingData& data) noexcept;
  void open_window() noexcept;
  void close_window(uint64_t now_ns) noexcept;
  void publish_window(uint32_t event, uint64_t id, uint64_t now_ns) noexcept;

  CUcontext handle_ = nullptr;
  uint32_t id_ = 0;
  uint32_t device_ = 0;
  uint32_t version_ = 0;
  bool on_ = false;
  bool stuck_ = false;
  uint32_t disables_failed_ = 0;
  PcConfig config_;
  uint32_t period_ = 0;          // as read back
  uint64_t window_id_ = 0;       // 0: none open
  uint64_t last_window_id_ = 0;  // what comes out after the close belongs to it
  StallClass classes_[PcBuffers::kMaxStalls] = {};
  PcBuffers buffers_;
};

}  // namespace gpuprof::cupti

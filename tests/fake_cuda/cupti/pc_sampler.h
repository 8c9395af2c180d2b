// SPDX-License-Identifier: Apache-2.0
// PC sampling of one context as a model: what ran while it was on, how many samples that makes, and
// when CUPTI has decoded them.
//
// A sampler ticks every 2^period cycles on each SM; a kernel's share of the ticks falls on its
// instructions by KernelCode's weights, in turns, so that totals are exact and the same every run.
// CUPTI's decoder wakes every 100 ms, first after 150 ms; Stop decodes what is there, Disable drops
// what is not decoded yet (both measured on an H200).
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tests/fake_cuda/hooks.h"
#include "tests/fake_cuda/stalls.h"

namespace fakecuda {

/// What cuptiPCSamplingSetConfigurationAttribute sets.
struct PcConfig {
  uint32_t period = 0;  // log2 cycles
  uint32_t sleep_ms = 100;
  uint32_t mode = CUPTI_PC_SAMPLING_COLLECTION_MODE_CONTINUOUS;
  bool start_stop = false;
  bool period_set = false;
  bool hardware_buffer_set = false;
  size_t scratch_bytes = 1 << 20;
  size_t hardware_bytes = 512u << 20;
  void* data_buffer = nullptr;
  uint64_t reasons = ~uint64_t{0};  // bit per place
};

/// Ground truth of one (call path, kernel, instruction, stall).
struct PcTruth {
  uint64_t sampled = 0, delivered = 0, not_issued = 0;
};

/// One PC record that is ready: counts by place in the list of names, and whose they are.
struct ReadyPc {
  struct Share {
    PcTruth* truth;
    uint64_t samples, not_issued;
  };
  std::array<uint32_t, kReasonCount> counts{};
  std::vector<Share> shares;
};

struct PcKey {
  const KernelCode* code;
  uint32_t correlation;
  uint32_t offset;
  auto operator<=>(const PcKey&) const = default;
};

/// Sums of all samplers of the process, for the truth.
struct PcTotals {
  uint64_t sampled = 0, delivered = 0, dropped = 0, non_user = 0, lost_disable = 0, lost_oom = 0,
           merged = 0, graph_skipped = 0;
  uint64_t enables = 0, disables = 0, starts = 0, stops = 0, drains = 0, drains_beside_launches = 0,
           oom = 0, modules_drained = 0;
};

class PcSampler {
 public:
  PcSampler(CUcontext context, uint32_t context_id, uint32_t device)
      : context_(context), context_id_(context_id), device_(device) {}

  // Everything below is called with pc_mutex() held.
  void enable(uint64_t now);
  void disable();
  void configured(uint64_t now);
  void start(uint64_t now);
  void stop(uint64_t now);
  /// Work that was put on the GPU. `label`: its call path.
  void ran(const Execution& work, const char* label, bool instant);
  /// Decodes what CUPTI's thread has by now; everything: all that has run.
  void decode(uint64_t now, bool everything);
  /// Moves up to `most` PCs into the client's records.
  size_t take(uint8_t* records, size_t stride, size_t most);
  /// Undelivered samples of a module that is gone become `heir`'s. How many.
  uint64_t merge(uint32_t module_id, const KernelCode* heir);
  [[nodiscard]] uint64_t undelivered(uint32_t module_id) const;
  /// Wedged until it is disabled: the hardware buffer ran over.
  void overflow();
  /// False, and a broken rule, where another process samples the GPU.
  bool take_gpu();
  [[nodiscard]] bool active() const { return enabled && (!config.start_stop || started); }

  PcConfig config;
  bool enabled = false;
  bool started = false;
  bool wedged = false;
  bool running = false;     // something was launched since it was enabled
  bool stop_tried = false;  // since the last start
  uint64_t range = 0;
  // Since the last drain.
  uint64_t total_samples = 0, dropped_samples = 0, non_user_samples = 0;
  std::map<PcKey, ReadyPc> ready;

  [[nodiscard]] CUcontext context() const { return context_; }
  [[nodiscard]] uint32_t context_id() const { return context_id_; }
  [[nodiscard]] uint32_t device() const { return device_; }

 private:
  struct Pending {
    const KernelCode* code;  // null: not a user's kernel
    const char* label;
    uint64_t start_ns, end_ns;
    uint32_t correlation;
  };
  struct Cursor {
    uint64_t cycles = 0;    // that did not make a tick yet, times 10^6
    uint64_t ns = 0;        // so far, of recorded code
    uint64_t position = 0;  // samples so far
  };

  [[nodiscard]] uint64_t period_cycles() const;
  [[nodiscard]] uint64_t recorded_samples(const KernelCode& code, uint64_t ns) const;
  void sample(const Pending& work, uint64_t from_ns, uint64_t to_ns);
  void distribute(const Pending& work, uint64_t position, uint64_t samples);
  void update_serialized() const;

  CUcontext context_;
  uint32_t context_id_;
  uint32_t device_;
  uint64_t enabled_ns_ = 0;
  uint64_t undrained_ = 0;
  std::vector<Pending> pending_;
  std::map<const KernelCode*, Cursor> cursors_;
};

std::mutex& pc_mutex();
PcTotals& pc_totals();

/// The sampler of a context, made when first asked for; null below: only if it was made.
PcSampler& pc_sampler(CUcontext context);
PcSampler* find_pc_sampler(CUcontext context);
std::vector<PcSampler*>& pc_samplers();

}  // namespace fakecuda

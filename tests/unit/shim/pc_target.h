// SPDX-License-Identifier: Apache-2.0
// What the tests of PC sampling share: a target with one kernel, and what came out of it.
#pragma once

#include <cuda.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/unit/shim/driver_calls.h"
#include "tests/unit/shim/probe_tap.h"
#include "tests/unit/shim/target_process.h"

namespace gpuprof::testing {

inline std::vector<gpuprof_pc_sample_v1> samples() {
  return ProbeTap::records<gpuprof_pc_sample_v1>(GPUPROF_PROBE_PC_SAMPLE);
}
inline std::vector<gpuprof_window_v1> windows() {
  return ProbeTap::records<gpuprof_window_v1>(GPUPROF_PROBE_WINDOW);
}

/// Names of one kind that were emitted, by id; those of one chunk.
inline std::map<uint64_t, std::string> names(gpuprof_name_kind kind) {
  std::map<uint64_t, std::string> all;
  for (const auto& name : ProbeTap::records<gpuprof_name_v1>(GPUPROF_PROBE_NAME)) {
    if (name.kind == kind) all[name.id] = std::string(name.bytes, name.chunk_bytes);
  }
  return all;
}

inline uint64_t counter(const ShimView& shim, gpuprof_pc_counter which) {
  return __atomic_load_n(&shim.status().pc_counters[which], __ATOMIC_RELAXED);
}

inline uint64_t drops(const ShimView& shim, gpuprof_drop_class which) {
  return __atomic_load_n(&shim.status().drop_totals[which], __ATOMIC_RELAXED);
}

/// Sums by what the stall's name says.
struct Sums {
  uint64_t stalled = 0, not_issued = 0, sample_count = 0;
};
inline Sums sums() {
  const auto stalls = names(GPUPROF_NAME_STALL);
  Sums sums;
  for (const auto& sample : samples()) {
    const auto found = stalls.find(uint64_t{sample.device_id} << 32 | sample.stall_index);
    EXPECT_NE(found, stalls.end()) << sample.stall_index;
    if (found == stalls.end()) continue;
    const std::string& name = found->second;
    if (name == "smsp__pcsamp_sample_count") {
      sums.sample_count += sample.samples;
    } else if (name.ends_with("_not_issued")) {
      sums.not_issued += sample.samples;
    } else if (name.starts_with("smsp__pcsamp_warps_issue_stalled_")) {
      sums.stalled += sample.samples;
    }
  }
  return sums;
}

/// A driver that is initialised, a kernel, and the shim's page.
struct Target {
  Target() : function((start_driver(), load_function("sampled"))) {}
  void run() const { launch(function, 200'000); }
  /// Launches until the page shows `state`, or until `condition`.
  [[nodiscard]] bool reach(gpuprof_state state) const {
    return shim.wait_for(state, [this] { run(); });
  }
  [[nodiscard]] bool reach(const std::function<bool()>& condition) const {
    return shim.wait_until(condition, [this] { run(); });
  }
  /// A tier of PC sampling is on; false if it is not in time.
  [[nodiscard]] bool sample(gpuprof_tier tier = GPUPROF_TIER_CONTINUOUS, uint32_t period = 0) {
    shim.request(tier, GPUPROF_LEASE_MS_MAX, UINT32_MAX, period);
    return reach(GPUPROF_STATE_TRACING_PC);
  }
  /// PC sampling was asked for and is refused.
  [[nodiscard]] bool refused(gpuprof_tier tier = GPUPROF_TIER_CONTINUOUS) {
    shim.request(tier);
    return reach([this] { return shim.status().pc_state == GPUPROF_PC_REFUSED; });
  }
  [[nodiscard]] std::string why() const { return shim.status().pc_reason_text; }

  CUfunction function;
  ShimView shim;
};

}  // namespace gpuprof::testing

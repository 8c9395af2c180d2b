// SPDX-License-Identifier: Apache-2.0
// A target process for tests of the whole shim: the test forks a child that initialises the fake
// driver with the shim injected, drives it, and ends through exit(), so that the fake's verdict
// about broken rules (status 99) and the test's own expectations (status 1) both reach the parent.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "proto/memfd_layout.h"

namespace gpuprof::testing {

using Environment = std::map<std::string, std::string>;

/// Armed for tracing at init, with more added.
inline Environment armed_with(const Environment& more = {}) {
  Environment all = {{"GPU_PROFILED_ARM", "trace"}, {"GPU_PROFILED_STACK_RATE", "all"}};
  for (const auto& [name, value] : more) all[name] = value;
  return all;
}

struct Outcome {
  int status = -1;    // exit status, or 128 + signal
  std::string error;  // what it wrote to stderr
  double seconds = 0;
};

/// Runs `body` in a forked child with `environment` added. Returns when the child has ended; one
/// that takes longer than `timeout_s` is killed.
Outcome run_target(const Environment& environment, const std::function<void()>& body,
                   double timeout_s = 100);

/// Whether the fastest of five runs took less than `seconds`. A bound on time is a promise about
/// the shim; one run on a busy machine tells of the machine. `run` checks all else itself.
bool takes_less(double seconds, const std::function<Outcome()>& run);

/// For conditions that come sooner or later: only a hang, not a busy machine, takes so long.
inline constexpr int kPatienceMs = 30'000;

/// What a sanitizer adds to the end of a process: TSan sleeps for a second.
#ifdef GPUPROF_SANITIZED
inline constexpr double kSanitizerExitSeconds = 3;
#else
inline constexpr double kSanitizerExitSeconds = 0;
#endif

/// Expects status 0 of a target, showing its stderr otherwise.
#define EXPECT_CLEAN(outcome)                      \
  do {                                             \
    const auto& result_ = (outcome);               \
    EXPECT_EQ(result_.status, 0) << result_.error; \
  } while (0)

/// A directory with the fake libcupti without some of its functions: their names are spoilt in the
/// file, so that dlsym finds nothing.
std::string cupti_without(const std::vector<std::string>& functions);

// --- inside the target
// ----------------------------------------------------------------------------

/// cuInit with the shim tapped and injected. A shim that was armed at init is asked to stay so, as
/// `run` does it, for a minute; the lease of two seconds is too short for a test on a busy machine.
void start_driver(bool keep_armed = true);

/// The shim's memfd of this process, as a daemon would see it.
class ShimView {
 public:
  ShimView();
  [[nodiscard]] bool exists() const { return status_ != nullptr; }
  [[nodiscard]] const gpuprof_status_page& status() const { return *status_; }
  [[nodiscard]] const gpuprof_module_entry& module(uint32_t index) const { return modules_[index]; }
  [[nodiscard]] std::string reason_text() const;

  /// Writes a control request with a fresh lease serial.
  void request(gpuprof_tier tier, uint32_t lease_ms = GPUPROF_LEASE_MS_MAX,
               uint32_t stack_rate = UINT32_MAX, uint32_t pc_period = 0, uint32_t pc_duty = 0);
  void release() { request(GPUPROF_TIER_OFF); }
  /// The grant that requests carry from now on; before the first one it is every GPU.
  void grant(uint64_t serial, const std::vector<gpuprof_gpu_uuid>& gpus);

  /// Waits until the page shows `state`; false after `timeout_ms`. `meanwhile` runs between looks.
  bool wait_for(gpuprof_state state, const std::function<void()>& meanwhile = {},
                int timeout_ms = kPatienceMs) const;
  bool wait_until(const std::function<bool()>& condition,
                  const std::function<void()>& meanwhile = {}, int timeout_ms = kPatienceMs) const;
  /// A whole round of the service thread lies between call and return.
  void wait_for_round() const;

 private:
  const gpuprof_status_page* status_ = nullptr;
  gpuprof_control_page* control_ = nullptr;
  const gpuprof_module_entry* modules_ = nullptr;
};

}  // namespace gpuprof::testing

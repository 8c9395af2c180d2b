// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "shim/cupti/launch_rule.h"

namespace gpuprof::cupti {

/// What is special about one version of CUPTI (cuptiGetVersion) on one driver, with the reason
/// beside each entry of the table in quirks.cc.
struct Quirks {
  /// A null activity buffer is answered by dropping records, not by a crash.
  bool null_buffer_ok = false;
  /// Activity buffers are per thread unless switched off: memory would be threads times buffers.
  bool per_thread_buffers = false;
  /// Errors inside CUPTI are reported through the STATE domain.
  bool state_domain = false;
  /// Keep the subscriber from init on.
  bool eager = false;
  /// Activity, once enabled, stays enabled; only callbacks and emission stop.
  bool no_disarm = false;
  /// A thread inside a call whose callback id is switched off gives that call's correlation id to
  /// everything it launches from then on, for the life of the thread and to every client: runtime
  /// ids must stay on once they are, and driver ids until activity was on once.
  bool ids_stick = false;
  /// What LaunchRule starts from.
  LaunchRule::Verdict launch_rule = LaunchRule::Verdict::kChecking;
  /// Text for the status page where eager or no_disarm is set.
  const char* reason = nullptr;
};

/// `driver_version`: cuDriverGetVersion(), 0 if unknown.
Quirks quirks_of(uint32_t version, uint32_t driver_version) noexcept;

/// CUDA major that a version belongs to: 18 is 11.8, 19 to 28 are 12.x, from 13.0 on it is xxyyzz.
uint32_t cuda_major_of(uint32_t version) noexcept;

/// What cuptiGetVersion() answered, told apart where two releases share a number: 12.0 and 12.1
/// answer 11.8's 18, not the 19 of NVIDIA's own table. `major`: of the library, 0 if unknown.
uint32_t version_of(uint32_t answered, uint32_t major) noexcept;

}  // namespace gpuprof::cupti

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpuprof::cupti {

/// CUpti_CallbackDomain. Our own, because 11.8's headers lack kState (12.2).
enum class Domain : uint32_t { kDriver = 1, kRuntime = 2, kResource = 3, kState = 6 };

/// CUpti_CallbackIdResource, the ids that we enable, one by one: the whole domain would fire
/// MODULE_PROFILED for every launch, -14 % of the launch rate.
enum class ResourceId : uint32_t {
  kContextCreated = 1,
  kContextDestroyStarting = 2,
  kModuleLoaded = 6,
  kModuleUnloadStarting = 7,
  kGraphNodeCreated = 13,
};

/// CUpti_CallbackIdState.
inline constexpr uint32_t kStateFatalError = 1;

/// What an API callback id means to us.
enum class Call : uint8_t {
  kOther = 0,
  kKernel,
  kGraph,
  kMemcpy,
  kMemset,
  kCaptureBegin,
  kCaptureEnd,
};

struct CallbackId {
  Domain domain;
  uint16_t id;
  Call call;
};

/// Every id that may be enabled (callback_ids.inc and the stream-capture calls).
const CallbackId* callback_ids(size_t* count) noexcept;

/// kOther for ids that are not in the table. One load; runs per callback.
Call call_of(Domain domain, uint32_t id) noexcept;

inline bool is_launch(Call call) noexcept { return call == Call::kKernel || call == Call::kGraph; }
inline bool is_copy(Call call) noexcept { return call == Call::kMemcpy || call == Call::kMemset; }
inline bool is_capture(Call call) noexcept {
  return call == Call::kCaptureBegin || call == Call::kCaptureEnd;
}

}  // namespace gpuprof::cupti

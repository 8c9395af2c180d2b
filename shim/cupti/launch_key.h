// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "shim/core/sampler.h"
#include "shim/cupti/callback_ids.h"

namespace gpuprof::cupti {

/// What tells a launch from others of its kind, for the sampler's strata: the CUfunction (at the
/// runtime's callbacks the host function) or the CUgraphExec, read from the call's parameters; for
/// copies and fills the API function, since most of these name a direction.
///
/// Not symbolName: the header says what it points to and not whether that stays, and a pointer into
/// a buffer would make all kernels one stratum. A CUfunction is a handle that the application
/// keeps. One kernel in two modules has two of them and one key in the joiner: two strata, no bias.
inline uint64_t launched_work(Domain domain, uint32_t id, Call call, const void* params) noexcept {
  const uint64_t by_api = uint64_t{id} << 4 | static_cast<uint64_t>(domain);
  if (params == nullptr || !is_launch(call)) return by_api;
  const auto* words = static_cast<const uint64_t*>(params);
  if (domain == Domain::kDriver) {
    switch (id) {
      case 480:
        return by_api;  // cuLaunchCooperativeKernelMultiDevice: a list of functions
      case 652:         // cuLaunchKernelEx, _ptsz: the configuration comes first
      case 653:
        return words[1];
      default:
        return words[0];
    }
  }
  switch (id) {
    case 272:
      return by_api;  // cudaLaunchCooperativeKernelMultiDevice
    case 430:         // cudaLaunchKernelExC, _ptsz
    case 431:
      return words[1];
    default:
      return words[0];
  }
}

/// `work`: launched_work().
inline uint64_t launch_key(Call call, uint32_t context, uint64_t work) noexcept {
  return shim::stratum_key(static_cast<uint32_t>(call), context, work);
}

}  // namespace gpuprof::cupti

// SPDX-License-Identifier: Apache-2.0
//
// The exit statuses of gpu-profiled and how an error maps to one.
#pragma once

#include "daemon/base/result.h"

namespace gpuprof::cli {

inline constexpr int kExitProfileWritten = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitNothingProfiled = 3;

inline int exit_code_of(const Error& error) {
  switch (error.code) {
    case Code::kInvalidArgument:
      return kExitUsage;
    case Code::kNoTarget:
    case Code::kNotFound:
    case Code::kPermission:
    case Code::kUnsupported:
      return kExitNothingProfiled;
    default:
      return kExitFailure;
  }
}

}  // namespace gpuprof::cli

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace gpuprof::unwind {

enum class Machine : uint8_t { kX86_64, kAarch64 };

}  // namespace gpuprof::unwind

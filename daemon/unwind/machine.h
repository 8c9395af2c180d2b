// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace gpuprof::unwind {

enum class Machine : uint8_t { kX86_64, kAarch64 };

#if defined(__aarch64__)
inline constexpr Machine kHostMachine = Machine::kAarch64;
#else
inline constexpr Machine kHostMachine = Machine::kX86_64;
#endif

}  // namespace gpuprof::unwind

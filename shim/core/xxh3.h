// SPDX-License-Identifier: Apache-2.0
//
// XXH3-64, seed 0, from the header-only xxhash: no library to link, no symbol to collide.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpuprof::shim {

uint64_t xxh3_64(const void* bytes, size_t size_bytes);

}  // namespace gpuprof::shim

// SPDX-License-Identifier: Apache-2.0
#include "shim/core/xxh3.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace gpuprof::shim {

uint64_t xxh3_64(const void* bytes, size_t size_bytes) { return XXH3_64bits(bytes, size_bytes); }

}  // namespace gpuprof::shim

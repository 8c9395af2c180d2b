// SPDX-License-Identifier: Apache-2.0
//
// Geometric skips in integers: how many launches to pass over until the next one is drawn.
#pragma once

#include <cstdint>

namespace gpuprof::shim {

// -log2(fraction / 2^64) with 56 bits after the point, absolute error below 2^-55. `fraction` != 0.
uint64_t negative_log2_q56(uint64_t fraction);

// A geometric number with P(skip >= k) = (1 - p)^k, where 1/p = weight_q32 / 2^32 >= 1 and
// `uniform` is 64 random bits. 0 when p is 1.
uint64_t geometric_skip(uint64_t weight_q32, uint64_t uniform);

}  // namespace gpuprof::shim

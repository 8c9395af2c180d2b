// SPDX-License-Identifier: Apache-2.0
#include "shim/core/geometric.h"

namespace gpuprof::shim {

uint64_t negative_log2_q56(uint64_t fraction) {
  const int zeros = __builtin_clzll(fraction);
  // 1.63 fixed point in [1, 2). Squaring doubles the logarithm: its integer bit is the next bit.
  uint64_t mantissa = fraction << zeros;
  uint64_t bits = 0;
  for (int i = 0; i < 56; ++i) {
    const unsigned __int128 square = static_cast<unsigned __int128>(mantissa) * mantissa;
    const bool two_or_more = static_cast<uint64_t>(square >> 127) != 0;
    bits = bits << 1 | (two_or_more ? 1 : 0);
    mantissa = static_cast<uint64_t>(square >> (two_or_more ? 64 : 63));
  }
  return (static_cast<uint64_t>(zeros + 1) << 56) - bits;
}

uint64_t geometric_skip(uint64_t weight_q32, uint64_t uniform) {
  if (weight_q32 <= uint64_t{1} << 32) return 0;
  const auto p = static_cast<uint64_t>((static_cast<unsigned __int128>(1) << 96) / weight_q32);
  const uint64_t miss = negative_log2_q56(0 - p);  // 2^64 - p: the fraction 1 - p
  // 0 stands for a uniform just above it.
  return negative_log2_q56(uniform == 0 ? 1 : uniform) / (miss == 0 ? 1 : miss);
}

}  // namespace gpuprof::shim

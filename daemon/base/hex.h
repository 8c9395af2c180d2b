// SPDX-License-Identifier: Apache-2.0
//
// Bytes as lower-case hexadecimal digits.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace gpuprof {

[[nodiscard]] inline std::string hex(std::span<const uint8_t> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(2 * bytes.size());
  for (const uint8_t byte : bytes) {
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

}  // namespace gpuprof

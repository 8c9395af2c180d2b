// SPDX-License-Identifier: Apache-2.0
//
// Reading a target's memory.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

namespace gpuprof::python {

// Reads from `address`; returns the bytes read, fewer than asked for where it is unreadable.
using ReadMemory = std::function<size_t(uint64_t address, std::span<uint8_t> out)>;

// A value of one of the target's, all zero where it cannot be read.
template <class T>
T read_value(const ReadMemory& read, uint64_t address) {
  T value = {};
  auto* bytes = reinterpret_cast<uint8_t*>(&value);
  if (read(address, {bytes, sizeof value}) != sizeof value) return T{};
  return value;
}

}  // namespace gpuprof::python

// SPDX-License-Identifier: Apache-2.0
//
// Demangles C++ and Rust names, bounded in input and output.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace gpuprof::symbolize {

inline constexpr size_t kMaxMangledBytes = 16384;
inline constexpr size_t kMaxDemangledBytes = 65536;

// The readable form of a C++ (Itanium ABI) or Rust (legacy and v0) symbol; the name itself for
// anything else: C names, names that are too long, malformed, or that would demangle to
// more than kMaxDemangledBytes (substitutions can double the length at every step).
std::string demangle(const std::string& name);

}  // namespace gpuprof::symbolize

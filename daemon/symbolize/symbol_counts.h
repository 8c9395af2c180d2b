// SPDX-License-Identifier: Apache-2.0
//
// What names and lines were taken from, and what stood in the way.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>

namespace gpuprof::symbolize {

// Why an object has fewer names or lines than its files hold.
enum class DebugTrouble : uint8_t {
  kMiniDebug,    // .gnu_debugdata damaged or too large
  kMismatch,     // a debug file of another build: its build id or checksum differs
  kNoAlternate,  // the file that dwz moved shared parts to is not there
  kTooLarge,     // more compressed debug information than is read
};
inline constexpr int kDebugTroubleCount = 4;
inline constexpr const char* kDebugTroubleNames[kDebugTroubleCount] = {
    "mini_debug_unreadable", "debug_file_mismatch", "no_alternate", "debug_too_large"};

using DebugTroubles = std::array<uint64_t, kDebugTroubleCount>;

// Of the files that were asked for a name.
struct SymbolCounts {
  uint64_t files = 0;
  uint64_t with_dwarf = 0;      // from the file itself or a separate one
  uint64_t separate_files = 0;  // whose debug information was found elsewhere
  uint64_t mini_debug = 0;      // .gnu_debugdata used
  DebugTroubles troubles = {};

  SymbolCounts& operator+=(const SymbolCounts& other) {
    files += other.files;
    with_dwarf += other.with_dwarf;
    separate_files += other.separate_files;
    mini_debug += other.mini_debug;
    for (int i = 0; i < kDebugTroubleCount; ++i)
      troubles[static_cast<size_t>(i)] += other.troubles[static_cast<size_t>(i)];
    return *this;
  }
};

}  // namespace gpuprof::symbolize

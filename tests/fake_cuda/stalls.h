// SPDX-License-Identifier: Apache-2.0
// The stall reasons that PC sampling reports: what cuptiPCSamplingGetStallReasons named on an H200
// has 40 entries, each reason twice (all warps, and those of cycles in which nothing was issued)
// and two counters. Odd devices number them backwards, so that an index is never right by accident.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace fakecuda {

inline constexpr const char* kStalls[] = {"barrier",
                                          "branch_resolving",
                                          "dispatch_stall",
                                          "drain",
                                          "gmma",
                                          "imc_miss",
                                          "lg_throttle",
                                          "long_scoreboard",
                                          "membar",
                                          "math_pipe_throttle",
                                          "mio_throttle",
                                          "misc",
                                          "no_instructions",
                                          "not_selected",
                                          "selected",
                                          "short_scoreboard",
                                          "sleeping",
                                          "tex_throttle",
                                          "wait"};
inline constexpr uint32_t kStallCount = sizeof kStalls / sizeof kStalls[0];

// Places in the list of names: the two counters, then each reason and its twin.
inline constexpr uint32_t kReasonCount = 2 * kStallCount + 2;
inline constexpr uint32_t kSampleCount = 0;
inline constexpr uint32_t kDataDropped = 1;
constexpr uint32_t place_of_stall(uint32_t stall) { return 2 + 2 * stall; }
constexpr uint32_t place_of_not_issued(uint32_t stall) { return 3 + 2 * stall; }

/// kStallCount where there is no such reason.
inline uint32_t find_stall(const char* name, size_t length) {
  uint32_t stall = 0;
  while (stall < kStallCount &&
         (strlen(kStalls[stall]) != length || memcmp(kStalls[stall], name, length) != 0)) {
    ++stall;
  }
  return stall;
}

/// The index that a device gives to a place, and back.
constexpr uint32_t stall_index(uint32_t place, uint32_t device) {
  return device % 2 == 0 ? place : kReasonCount - 1 - place;
}

}  // namespace fakecuda

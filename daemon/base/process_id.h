// SPDX-License-Identifier: Apache-2.0
//
// ProcessId: a process for good, also after its number was reused.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace gpuprof {

// `pid` is the thread group's number at the daemon's pid namespace level. `start_ticks` is field 22
// of /proc/PID/stat: boottime in units of 10 ms (USER_HZ is 100 on every supported architecture),
// which is what BPF's task->start_boottime / 10,000,000 gives. `image` counts the programs that one
// process ran, by exec: correlation ids, totals and addresses of one mean nothing in the next. Only
// the recorder and what is behind it tell images apart; everywhere else it is 0.
struct ProcessId {
  uint32_t pid = 0;
  uint64_t start_ticks = 0;
  uint32_t image = 0;

  // As the kernel knows it.
  [[nodiscard]] ProcessId process() const { return {pid, start_ticks, 0}; }

  friend auto operator<=>(const ProcessId&, const ProcessId&) = default;
};

inline constexpr uint64_t kNsPerStartTick = 10'000'000;

}  // namespace gpuprof

template <>
struct std::hash<gpuprof::ProcessId> {
  size_t operator()(const gpuprof::ProcessId& id) const noexcept {
    return std::hash<uint64_t>()((id.start_ticks << 22) ^ (uint64_t{id.image} << 56) ^ id.pid);
  }
};

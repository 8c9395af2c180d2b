// SPDX-License-Identifier: Apache-2.0
//
// Records as a shim would emit them, for the tests of the joiner.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "daemon/base/process_id.h"
#include "daemon/join/joiner.h"

namespace gpuprof::join::testing {

inline constexpr ProcessId kProcess{100, 7};
inline constexpr uint64_t kSecond = 1'000'000'000;

inline uint64_t weight(double w) { return static_cast<uint64_t>(w * 4294967296.0); }

inline gpuprof_launch_v1 launch(uint32_t correlation, double w = 1.0, uint32_t epoch = 1,
                                uint32_t kind = GPUPROF_KIND_KERNEL) {
  gpuprof_launch_v1 record{};
  record.correlation = correlation;
  record.epoch = epoch;
  record.weight_q32 = weight(w);
  record.kind = kind;
  return record;
}

// A kernel `name` that ran for `ns`, on device 0, context 1, stream 7.
inline gpuprof_exec_v1 exec(uint32_t correlation, uint64_t name, uint64_t ns, uint32_t epoch = 1) {
  gpuprof_exec_v1 record{};
  record.start_ns = 1'000'000 + uint64_t{correlation} * 1000;
  record.end_ns = record.start_ns + ns;
  record.correlation = correlation;
  record.epoch = epoch;
  record.name_id = name;
  record.kind = GPUPROF_KIND_KERNEL;
  record.context_id = 1;
  record.stream_id = 7;
  return record;
}

inline void add(Joiner& joiner, const gpuprof_exec_v1& record, ProcessId process = kProcess) {
  joiner.add_execs(process, std::span(&record, 1));
}

struct Sum {
  uint64_t executions = 0;
  uint64_t time_ns = 0;
  friend bool operator==(const Sum&, const Sum&) = default;
};

template <class KeyOf>
auto sum_by(const JoinResult& result, KeyOf key_of) {
  std::map<decltype(key_of(Row{})), Sum> sums;
  for (const Row& row : result.rows) {
    Sum& sum = sums[key_of(row)];
    sum.executions += row.executions;
    sum.time_ns += row.time_ns;
  }
  return sums;
}

inline std::map<StackId, Sum> by_stack(const JoinResult& result) {
  return sum_by(result, [](const Row& row) { return row.stack; });
}
inline std::map<Match, Sum> by_match(const JoinResult& result) {
  return sum_by(result, [](const Row& row) { return row.match; });
}
inline std::map<Unmatched, Sum> by_reason(const JoinResult& result) {
  return sum_by(result, [](const Row& row) { return row.reason; });
}

}  // namespace gpuprof::join::testing

// SPDX-License-Identifier: Apache-2.0
//
// What an execution record is, as the joiner's keys.
#pragma once

#include <algorithm>
#include <cstdint>

#include "daemon/join/flat_index.h"
#include "daemon/join/launch_cache.h"
#include "daemon/join/window.h"
#include "proto/usdt_abi.h"

namespace gpuprof::join {

// 78 hours: longer executions are no clock's truth, and a few would overflow the file's int64 sums.
inline constexpr uint64_t kMaxExecutionNs = uint64_t{1} << 48;

inline uint64_t duration_ns(const gpuprof_exec_v1& exec) {
  const uint64_t ns = exec.end_ns > exec.start_ns ? exec.end_ns - exec.start_ns : 0;
  return std::min(ns, kMaxExecutionNs);
}

// Identifies an execution among those of its launch. 64 bits: of 32 two successive nodes of graphs
// would be alike, and one of them taken for a duplicate, a few times a day at 200,000 a second.
inline uint64_t fingerprint(const gpuprof_exec_v1& exec) {
  const uint64_t fields[5] = {exec.start_ns, exec.end_ns, exec.graph_node, exec.name_id,
                              uint64_t{exec.device_id} << 32 | exec.stream_id};
  return XXH3_64bits(fields, sizeof(fields));
}

inline bool same_execution(const gpuprof_exec_v1& a, const gpuprof_exec_v1& b) {
  return a.correlation == b.correlation && a.epoch == b.epoch && a.start_ns == b.start_ns &&
         a.end_ns == b.end_ns && a.graph_node == b.graph_node && a.name_id == b.name_id &&
         a.device_id == b.device_id && a.stream_id == b.stream_id;
}

inline ClassKey class_key(uint32_t process, const gpuprof_exec_v1& exec, Serialized serialized) {
  ClassKey key;
  key.serialized = serialized;
  key.process = process;
  key.device_id = exec.device_id;
  key.context_id = exec.context_id;
  key.stream_id = exec.stream_id;
  key.graph_id = exec.graph_id;
  key.kind = static_cast<uint8_t>(exec.kind <= GPUPROF_KIND_MEMSET ? exec.kind : 0);
  if (exec.kind == GPUPROF_KIND_KERNEL) key.name_id = exec.name_id;
  if (exec.kind == GPUPROF_KIND_MEMCPY && exec.copy_kind <= GPUPROF_COPY_PTOP) {
    key.copy_kind = static_cast<uint8_t>(exec.copy_kind);
  }
  return key;
}

// Whether a launch can have had this execution: CUPTI's ids have been alike for whole threads.
inline bool can_be_of(const Launch& launch, const ClassKey& key) {
  if (key.kind != GPUPROF_KIND_KERNEL) return true;
  if (launch.is_graph) return key.graph_id != 0;
  const auto name = static_cast<uint32_t>(key.name_id);
  return launch.name == 0 || name == 0 || launch.name == name;
}

}  // namespace gpuprof::join

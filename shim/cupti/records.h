// SPDX-License-Identifier: Apache-2.0
// Our own view of CUPTI's activity records.
//
// CUPTI emits the newest struct that the *loaded* library knows, whatever the headers say (208
// bytes a kernel on 12.8, 216 on 13.0), and only ever appends members. So each kind is read through
// a struct of the members that every version from 11.8 on has at the same place, never by size:
// cuptiActivityGetNextRecord knows the stride. records.cc checks the offsets against the headers.
#pragma once

#include <cstdint>

#include "proto/usdt_abi.h"

namespace gpuprof::cupti {

/// CUpti_ActivityKind, the only kinds that we enable. Never KERNEL (serialises the GPU),
/// GRAPH_TRACE (removes the node records), RUNTIME or DRIVER (a record per API call).
enum class RecordKind : uint32_t {
  kMemcpy = 1,
  kMemset = 2,
  kConcurrentKernel = 10,
  kMemcpyPeer = 22,  // CUPTI_ACTIVITY_KIND_MEMCPY2
};

/// CUpti_ActivityKernel5 (CUDA 11.0) and everything after: 160 bytes.
struct KernelRecord {
  uint32_t kind;
  uint8_t cache_config;
  uint8_t shared_memory_config;
  uint16_t registers_per_thread;
  uint32_t partitioned_cache[2];
  uint64_t start;
  uint64_t end;
  uint64_t completed;
  uint32_t device_id;
  uint32_t context_id;
  uint32_t stream_id;
  int32_t grid[3];
  int32_t block[3];
  int32_t static_shared_bytes;
  int32_t dynamic_shared_bytes;
  uint32_t local_per_thread;
  uint32_t local_total;
  uint32_t correlation;
  int64_t grid_id;
  const char* name;
  void* reserved0;
  uint64_t queued;
  uint64_t submitted;
  uint8_t launch_type;
  uint8_t shared_carveout_requested;
  uint8_t shared_carveout;
  uint8_t padding;
  uint32_t shared_executed;
  uint64_t graph_node_id;
  uint32_t shmem_limit;
  uint32_t graph_id;
};
static_assert(sizeof(KernelRecord) == 160);

/// CUpti_ActivityMemcpy5 (CUDA 11.6) and everything after: 80 bytes of it.
struct MemcpyRecord {
  uint32_t kind;
  uint8_t copy_kind;
  uint8_t source_kind;
  uint8_t destination_kind;
  uint8_t flags;
  uint64_t bytes;
  uint64_t start;
  uint64_t end;
  uint32_t device_id;
  uint32_t context_id;
  uint32_t stream_id;
  uint32_t correlation;
  uint32_t runtime_correlation;
  uint32_t padding;
  void* reserved0;
  uint64_t graph_node_id;
  uint32_t graph_id;
  uint32_t channel_id;
};
static_assert(sizeof(MemcpyRecord) == 80);

/// CUpti_ActivityMemcpyPtoP4 (CUDA 11.6) and everything after: 88 bytes of it.
struct MemcpyPeerRecord {
  uint32_t kind;
  uint8_t copy_kind;
  uint8_t source_kind;
  uint8_t destination_kind;
  uint8_t flags;
  uint64_t bytes;
  uint64_t start;
  uint64_t end;
  uint32_t device_id;
  uint32_t context_id;
  uint32_t stream_id;
  uint32_t source_device_id;
  uint32_t source_context_id;
  uint32_t destination_device_id;
  uint32_t destination_context_id;
  uint32_t correlation;
  void* reserved0;
  uint64_t graph_node_id;
  uint32_t graph_id;
  uint32_t channel_id;
};
static_assert(sizeof(MemcpyPeerRecord) == 88);

/// CUpti_ActivityMemset4 (CUDA 11.6) and everything after: 80 bytes of it.
struct MemsetRecord {
  uint32_t kind;
  uint32_t value;
  uint64_t bytes;
  uint64_t start;
  uint64_t end;
  uint32_t device_id;
  uint32_t context_id;
  uint32_t stream_id;
  uint32_t correlation;
  uint16_t flags;
  uint16_t memory_kind;
  uint32_t padding;
  void* reserved0;
  uint64_t graph_node_id;
  uint32_t graph_id;
  uint32_t channel_id;
};
static_assert(sizeof(MemsetRecord) == 80);

/// What became of one record.
enum class RecordStatus : uint32_t {
  kExecution,    // *exec is filled, all but its epoch and name_id
  kInvalidTime,  // start or end zero, or start > end; *exec is filled likewise
  kUnknownKind,  // of a kind that we never enable
};

/// Reads one record that a libcupti of API version `library_version` wrote, into an *exec that is
/// all zeroes. Times in *exec are still CUPTI's clock; *name is the kernel's mangled name (CUPTI's
/// memory, shared, never ours to free) or null for copies and fills.
RecordStatus read_record(const void* record, uint32_t library_version, gpuprof_exec_v1* exec,
                         const char** name) noexcept;

}  // namespace gpuprof::cupti

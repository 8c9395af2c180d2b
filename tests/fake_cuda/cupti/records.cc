// SPDX-License-Identifier: Apache-2.0
// Activity records as the faked API version lays them out: always that version's newest struct.
#include <cstring>

#include "tests/fake_cuda/cupti/state.h"

namespace fakecuda {
namespace {

constexpr size_t kKernel8 = 200;   // CUDA 11.8
constexpr size_t kKernel9 = 208;   // 12.0
constexpr size_t kKernel10 = 216;  // 13.0
constexpr size_t kMemcpy5 = 88;
constexpr size_t kMemcpy6 = 96;  // 12.8
constexpr size_t kMemset4 = 88;
constexpr size_t kPtoP4 = 96;
static_assert(sizeof(CUpti_ActivityKernel8) == kKernel8 &&
              sizeof(CUpti_ActivityKernel9) == kKernel9);
static_assert(sizeof(CUpti_ActivityKernel10) == kKernel10);
static_assert(sizeof(CUpti_ActivityMemcpy5) == kMemcpy5 &&
              sizeof(CUpti_ActivityMemcpy6) == kMemcpy6);
static_assert(sizeof(CUpti_ActivityMemset4) == kMemset4 &&
              sizeof(CUpti_ActivityMemcpyPtoP4) == kPtoP4);

void write_kernel(uint8_t* to, const Execution& work, uint64_t start_ns, uint64_t end_ns) {
  CUpti_ActivityKernel10 r{};
  r.kind = static_cast<CUpti_ActivityKind>(work.kind);
  r.registersPerThread = static_cast<uint16_t>(work.registers);
  r.start = start_ns;
  r.end = end_ns;
  r.completed = end_ns;
  r.deviceId = work.device_id;
  r.contextId = work.context_id;
  r.streamId = work.stream_id;
  r.gridX = static_cast<int32_t>(work.grid[0]);
  r.gridY = static_cast<int32_t>(work.grid[1]);
  r.gridZ = static_cast<int32_t>(work.grid[2]);
  r.blockX = static_cast<int32_t>(work.block[0]);
  r.blockY = static_cast<int32_t>(work.block[1]);
  r.blockZ = static_cast<int32_t>(work.block[2]);
  r.staticSharedMemory = static_cast<int32_t>(work.static_shared);
  r.dynamicSharedMemory = static_cast<int32_t>(work.dynamic_shared);
  r.correlationId = work.correlation;
  r.gridId = work.correlation;
  r.name = work.name;
  r.graphNodeId = work.graph_node;
  r.graphId = work.graph_id;
  memcpy(to, &r, record_stride(work.kind));
}

void write_memcpy(uint8_t* to, const Execution& work, uint64_t start_ns, uint64_t end_ns) {
  CUpti_ActivityMemcpy6 r{};
  r.kind = CUPTI_ACTIVITY_KIND_MEMCPY;
  r.copyKind = static_cast<uint8_t>(work.copy_kind);
  r.bytes = work.bytes;
  r.start = start_ns;
  r.end = end_ns;
  r.deviceId = work.device_id;
  r.contextId = work.context_id;
  r.streamId = work.stream_id;
  r.correlationId = work.correlation;
  r.graphNodeId = work.graph_node;
  r.graphId = work.graph_id;
  r.copyCount = 1;
  memcpy(to, &r, record_stride(work.kind));
}

void write_peer(uint8_t* to, const Execution& work, uint64_t start_ns, uint64_t end_ns) {
  CUpti_ActivityMemcpyPtoP4 r{};
  r.kind = CUPTI_ACTIVITY_KIND_MEMCPY2;
  r.copyKind = static_cast<uint8_t>(work.copy_kind);
  r.bytes = work.bytes;
  r.start = start_ns;
  r.end = end_ns;
  r.deviceId = work.device_id;
  r.contextId = work.context_id;
  r.streamId = work.stream_id;
  r.srcContextId = work.context_id;
  r.dstContextId = work.context_id;
  r.correlationId = work.correlation;
  r.graphNodeId = work.graph_node;
  r.graphId = work.graph_id;
  memcpy(to, &r, sizeof r);
}

void write_memset(uint8_t* to, const Execution& work, uint64_t start_ns, uint64_t end_ns) {
  CUpti_ActivityMemset4 r{};
  r.kind = CUPTI_ACTIVITY_KIND_MEMSET;
  r.value = work.memset_value;
  r.bytes = work.bytes;
  r.start = start_ns;
  r.end = end_ns;
  r.deviceId = work.device_id;
  r.contextId = work.context_id;
  r.streamId = work.stream_id;
  r.correlationId = work.correlation;
  r.graphNodeId = work.graph_node;
  r.graphId = work.graph_id;
  memcpy(to, &r, sizeof r);
}

}  // namespace

size_t record_stride(uint32_t kind) {
  const uint32_t version = api_version();
  switch (kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
    case CUPTI_ACTIVITY_KIND_KERNEL:
      return version >= 130000 ? kKernel10 : version >= 19 ? kKernel9 : kKernel8;
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      return version >= 26 ? kMemcpy6 : kMemcpy5;
    case CUPTI_ACTIVITY_KIND_MEMCPY2:
      return kPtoP4;
    case CUPTI_ACTIVITY_KIND_MEMSET:
      return kMemset4;
    default:
      return 0;
  }
}

size_t largest_stride() { return record_stride(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL); }

void write_record(uint8_t* to, const Execution& work, uint64_t start_ns, uint64_t end_ns) {
  switch (work.kind) {
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      return write_memcpy(to, work, start_ns, end_ns);
    case CUPTI_ACTIVITY_KIND_MEMCPY2:
      return write_peer(to, work, start_ns, end_ns);
    case CUPTI_ACTIVITY_KIND_MEMSET:
      return write_memset(to, work, start_ns, end_ns);
    default:
      return write_kernel(to, work, start_ns, end_ns);
  }
}

}  // namespace fakecuda

using namespace fakecuda;

// Exempt from the guard: a client calls it inside bufferCompleted while another thread may flush.
FAKE_EXPORT CUptiResult cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid_bytes,
                                                   CUpti_Activity** record) {
  if (buffer == nullptr || record == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  uint8_t* next = buffer;
  if (*record != nullptr) {
    const size_t stride = record_stride((*record)->kind);
    if (stride == 0) return CUPTI_ERROR_INVALID_KIND;
    next = reinterpret_cast<uint8_t*>(*record) + stride;
  }
  if (next + sizeof(uint64_t) > buffer + valid_bytes) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = reinterpret_cast<CUpti_Activity*>(next);
  return CUPTI_SUCCESS;
}

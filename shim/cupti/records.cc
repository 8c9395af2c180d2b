// SPDX-License-Identifier: Apache-2.0
#include "shim/cupti/records.h"

#include <cstddef>

#include "shim/cupti/vendor.h"

namespace gpuprof::cupti {
namespace {

#define SAME(ours, member, theirs_member)                                    \
  static_assert(offsetof(ours, member) == offsetof(Theirs, theirs_member) && \
                sizeof(ours::member) == sizeof(Theirs::theirs_member))

// The prefix of every struct of a kind that the present headers name. The names of newer structs
// exist in newer headers only, hence the version gates below.
template <typename Theirs>
constexpr bool check_kernel() {
  SAME(KernelRecord, kind, kind);
  SAME(KernelRecord, registers_per_thread, registersPerThread);
  SAME(KernelRecord, start, start);
  SAME(KernelRecord, end, end);
  SAME(KernelRecord, device_id, deviceId);
  SAME(KernelRecord, context_id, contextId);
  SAME(KernelRecord, stream_id, streamId);
  static_assert(offsetof(KernelRecord, grid) == offsetof(Theirs, gridX));
  static_assert(offsetof(KernelRecord, grid) + 8 == offsetof(Theirs, gridZ));
  static_assert(offsetof(KernelRecord, block) == offsetof(Theirs, blockX));
  static_assert(offsetof(KernelRecord, block) + 8 == offsetof(Theirs, blockZ));
  SAME(KernelRecord, static_shared_bytes, staticSharedMemory);
  SAME(KernelRecord, dynamic_shared_bytes, dynamicSharedMemory);
  SAME(KernelRecord, correlation, correlationId);
  SAME(KernelRecord, name, name);
  SAME(KernelRecord, launch_type, launchType);
  SAME(KernelRecord, graph_node_id, graphNodeId);
  SAME(KernelRecord, graph_id, graphId);
  return true;
}

template <typename Theirs>
constexpr bool check_memcpy() {
  SAME(MemcpyRecord, kind, kind);
  SAME(MemcpyRecord, copy_kind, copyKind);
  SAME(MemcpyRecord, bytes, bytes);
  SAME(MemcpyRecord, start, start);
  SAME(MemcpyRecord, end, end);
  SAME(MemcpyRecord, device_id, deviceId);
  SAME(MemcpyRecord, context_id, contextId);
  SAME(MemcpyRecord, stream_id, streamId);
  SAME(MemcpyRecord, correlation, correlationId);
  SAME(MemcpyRecord, graph_node_id, graphNodeId);
  SAME(MemcpyRecord, graph_id, graphId);
  return true;
}

template <typename Theirs>
constexpr bool check_memcpy_peer() {
  SAME(MemcpyPeerRecord, kind, kind);
  SAME(MemcpyPeerRecord, copy_kind, copyKind);
  SAME(MemcpyPeerRecord, bytes, bytes);
  SAME(MemcpyPeerRecord, start, start);
  SAME(MemcpyPeerRecord, end, end);
  SAME(MemcpyPeerRecord, device_id, deviceId);
  SAME(MemcpyPeerRecord, context_id, contextId);
  SAME(MemcpyPeerRecord, stream_id, streamId);
  SAME(MemcpyPeerRecord, correlation, correlationId);
  SAME(MemcpyPeerRecord, graph_node_id, graphNodeId);
  SAME(MemcpyPeerRecord, graph_id, graphId);
  return true;
}

template <typename Theirs>
constexpr bool check_memset() {
  SAME(MemsetRecord, kind, kind);
  SAME(MemsetRecord, bytes, bytes);
  SAME(MemsetRecord, start, start);
  SAME(MemsetRecord, end, end);
  SAME(MemsetRecord, device_id, deviceId);
  SAME(MemsetRecord, context_id, contextId);
  SAME(MemsetRecord, stream_id, streamId);
  SAME(MemsetRecord, correlation, correlationId);
  SAME(MemsetRecord, graph_node_id, graphNodeId);
  SAME(MemsetRecord, graph_id, graphId);
  return true;
}
#undef SAME

static_assert(check_kernel<CUpti_ActivityKernel8>());
static_assert(check_memcpy<CUpti_ActivityMemcpy5>());
static_assert(check_memcpy_peer<CUpti_ActivityMemcpyPtoP4>());
static_assert(check_memset<CUpti_ActivityMemset4>());
#if GPUPROF_HEADERS_API >= 19
static_assert(check_kernel<CUpti_ActivityKernel9>());
#endif
#if GPUPROF_HEADERS_API >= 26
static_assert(check_memcpy<CUpti_ActivityMemcpy6>());
#endif
#if GPUPROF_HEADERS_API >= 130000
static_assert(check_kernel<CUpti_ActivityKernel10>());
static_assert(offsetof(CUpti_ActivityKernel10, isDeviceLaunched) == 208);
static_assert(offsetof(CUpti_ActivityMemcpy6, isDeviceLaunched) == 84);
static_assert(offsetof(CUpti_ActivityMemset4, isDeviceLaunched) == 84);
#endif
#if GPUPROF_HEADERS_API >= 130500
static_assert(check_kernel<CUpti_ActivityKernel11>());
static_assert(check_kernel<CUpti_ActivityKernel12>());
static_assert(check_kernel<CUpti_ActivityKernel13>());
static_assert(check_memcpy<CUpti_ActivityMemcpy7>());
static_assert(check_memset<CUpti_ActivityMemset5>());
#endif

static_assert(static_cast<int>(RecordKind::kMemcpy) == CUPTI_ACTIVITY_KIND_MEMCPY);
static_assert(static_cast<int>(RecordKind::kMemset) == CUPTI_ACTIVITY_KIND_MEMSET);
static_assert(static_cast<int>(RecordKind::kConcurrentKernel) ==
              CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
static_assert(static_cast<int>(RecordKind::kMemcpyPeer) == CUPTI_ACTIVITY_KIND_MEMCPY2);

bool valid_times(uint64_t start, uint64_t end) noexcept {
  return start != 0 && end != 0 && start <= end;
}

/// What every kind has under the same member name.
template <typename Record>
bool copy_shared_members(const Record& record, gpuprof_exec_v1* exec) noexcept {
  exec->start_ns = record.start;
  exec->end_ns = record.end;
  exec->correlation = record.correlation;
  exec->device_id = record.device_id;
  exec->context_id = record.context_id;
  exec->stream_id = record.stream_id;
  exec->graph_id = record.graph_id;
  exec->graph_node = record.graph_node_id;
  return valid_times(record.start, record.end);
}

/// The byte at `offset`, which records have from `since` on: behind the prefix, so it may be read
/// only when the library that wrote the record is new enough.
bool launched_from_device(const void* record, size_t offset, uint32_t since,
                          uint32_t library_version) noexcept {
  return library_version >= since && static_cast<const uint8_t*>(record)[offset] == 1;
}

}  // namespace

RecordStatus read_record(const void* record, uint32_t library_version, gpuprof_exec_v1* exec,
                         const char** name) noexcept {
  *name = nullptr;
  bool valid = false;
  bool from_device = false;
  switch (static_cast<RecordKind>(static_cast<const CUpti_Activity*>(record)->kind)) {
    case RecordKind::kConcurrentKernel: {
      const auto& kernel = *static_cast<const KernelRecord*>(record);
      valid = copy_shared_members(kernel, exec);
      exec->kind = GPUPROF_KIND_KERNEL;
      for (int axis = 0; axis < 3; ++axis) {
        exec->grid[axis] = static_cast<uint32_t>(kernel.grid[axis]);
        exec->block[axis] = static_cast<uint32_t>(kernel.block[axis]);
      }
      exec->registers_per_thread = kernel.registers_per_thread;
      exec->static_shared_bytes = static_cast<uint32_t>(kernel.static_shared_bytes);
      exec->dynamic_shared_bytes = static_cast<uint32_t>(kernel.dynamic_shared_bytes);
      *name = kernel.name;
      from_device = launched_from_device(record, 208, 130000, library_version);
      break;
    }
    case RecordKind::kMemcpy: {
      const auto& copy = *static_cast<const MemcpyRecord*>(record);
      valid = copy_shared_members(copy, exec);
      exec->kind = GPUPROF_KIND_MEMCPY;
      exec->copy_kind = copy.copy_kind;
      exec->bytes = copy.bytes;
      from_device = launched_from_device(record, 84, 130000, library_version);
      break;
    }
    case RecordKind::kMemcpyPeer: {
      const auto& copy = *static_cast<const MemcpyPeerRecord*>(record);
      valid = copy_shared_members(copy, exec);
      exec->kind = GPUPROF_KIND_MEMCPY;
      exec->copy_kind = GPUPROF_COPY_PTOP;
      exec->bytes = copy.bytes;
      break;
    }
    case RecordKind::kMemset: {
      const auto& fill = *static_cast<const MemsetRecord*>(record);
      valid = copy_shared_members(fill, exec);
      exec->kind = GPUPROF_KIND_MEMSET;
      exec->bytes = fill.bytes;
      from_device = launched_from_device(record, 84, 130000, library_version);
      break;
    }
    default:
      return RecordStatus::kUnknownKind;
  }
  if (from_device) exec->flags |= GPUPROF_EXEC_DEVICE_LAUNCHED;
  return valid ? RecordStatus::kExecution : RecordStatus::kInvalidTime;
}

}  // namespace gpuprof::cupti

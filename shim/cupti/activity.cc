// SPDX-License-Identifier: Apache-2.0
// CUPTI's two buffer callbacks. They take no lock: buffer-requested runs on the application's
// thread under CUPTI's own lock, and buffer-completed on a CUPTI thread or on whichever thread
// flushes.
#include "shim/core/clock.h"
#include "shim/core/correlation.h"
#include "shim/core/exec_batch.h"
#include "shim/core/owner.h"
#include "shim/core/probes.h"
#include "shim/core/status.h"
#include "shim/cupti/arming.h"
#include "shim/cupti/callback_scope.h"
#include "shim/cupti/guard.h"
#include "shim/cupti/launch_names.h"
#include "shim/cupti/name_cache.h"
#include "shim/cupti/pc_sampling.h"
#include "shim/cupti/records.h"

namespace gpuprof::cupti {
namespace {

/// One buffer's records on their way to exec_v1.
class Conversion {
 public:
  Conversion() noexcept : now_ns_(shim::monotonic_ns()) {}

  void add(const CUpti_Activity* record) noexcept {
    gpuprof_exec_v1& exec = batch_.next();
    const char* name = nullptr;
    const RecordStatus status = read_record(record, arming().version(), &exec, &name);
    if (status == RecordStatus::kUnknownKind) {
      shim::count_drop(GPUPROF_DROP_UNKNOWN_KIND);
      batch_.cancel();
      return;
    }
    if (status == RecordStatus::kInvalidTime ||
        !shim::clock_converter().convert(exec.start_ns, exec.end_ns, now_ns_, &exec.start_ns,
                                         &exec.end_ns)) {
      // A forced flush hands out what is still running too: that is our doing, not a wrong record.
      const bool incomplete = arming().closing() && exec.end_ns == 0;
      shim::count_drop(incomplete ? GPUPROF_DROP_INCOMPLETE : GPUPROF_DROP_INVALID_TIME);
      batch_.cancel();
      return;
    }
    const shim::WideCorrelation wide = shim::correlations().execution(exec.correlation);
    exec.correlation = wide.id;
    exec.epoch = wide.epoch;
    if (wide.before_arm) {
      exec.flags |= GPUPROF_EXEC_BEFORE_ARM;
    } else if (exec.kind == GPUPROF_KIND_KERNEL) {
      arming().rule().observe_execution();
    }
    if (name != nullptr) {
      bool fresh = false;
      // A graph's nodes have the id of the graph's launch.
      exec.name_id = exec.graph_id == 0 ? launch_names().of(wide) : 0;
      if (exec.name_id == 0) exec.name_id = names_.id_of(name, &fresh);
      if (exec.name_id == 0) shim::count_drop(GPUPROF_DROP_NAME_TABLE_FULL);
      note_sight(record, exec, name, fresh);
    }
  }

 private:
  /// What the serialized tier must know of the past. A look at the name once a buffer.
  static void note_sight(const CUpti_Activity* record, const gpuprof_exec_v1& exec,
                         const char* name, bool fresh) noexcept {
    const uint8_t launch_type = reinterpret_cast<const KernelRecord*>(record)->launch_type;
    uint32_t sight = sight_of_kernel(launch_type, exec.graph_id);
    if (fresh && is_collective(name)) sight |= kSawCollective;
    if (sight != 0) pc_sampling().saw(sight);
  }

  uint64_t now_ns_;
  NameCache names_;
  shim::ExecBatch batch_;
};

/// Records in the shared scratch buffer: several writers at once, so it cannot be walked. 208 bytes
/// is the kernel record of 12.x, and no later version gets a scratch buffer.
constexpr size_t kScratchRecordBytes = 208;

void convert_records(CompletedBuffer& buffer) noexcept {
  shim::clock_converter().sample();
  Conversion conversion;
  while (const CUpti_Activity* record = buffer.next()) conversion.add(record);
}

}  // namespace

void on_buffer_requested(uint8_t** buffer, size_t* size, size_t* max_records) noexcept {
  BufferPool& pool = arming().buffers();
  BufferPool::Buffer taken = pool.take();
  // No buffer left. From 12.9 on CUPTI can be told so, and counts what it drops; older ones crash.
  if (taken.data == nullptr && !arming().quirks().null_buffer_ok) taken = pool.take_scratch();
  *buffer = taken.data;
  *size = taken.size_bytes;
  *max_records = 0;
}

void on_buffer_completed(CUcontext context, uint32_t stream, uint8_t* data, size_t /*size*/,
                         size_t valid_bytes) noexcept {
  BufferPool& pool = arming().buffers();
  const BufferPool::Origin origin = pool.origin_of(data);
  if (origin == BufferPool::Origin::kForeign) return;  // another client's: not ours to touch
  if (shim::owned()) {
    const CallbackScope scope;
    CompletedBuffer buffer(context, stream, data, valid_bytes);
    if (origin == BufferPool::Origin::kSharedScratch) {
      shim::count_drop(GPUPROF_DROP_NO_BUFFER, valid_bytes / kScratchRecordBytes);
    } else if (!arming().discarding() && shim::enabled(GPUPROF_PROBE_EXEC)) {
      convert_records(buffer);
    }
    const uint64_t dropped = buffer.dropped();
    if (dropped != 0) shim::count_drop(GPUPROF_DROP_CUPTI, dropped);
  }
  pool.give_back(data);
}

}  // namespace gpuprof::cupti

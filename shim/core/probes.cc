// SPDX-License-Identifier: Apache-2.0
#include "shim/core/probes.h"

#include <atomic>

#include "shim/core/memfd.h"
#include "shim/core/owner.h"

// usdt_sites.S
extern "C" {
extern uint16_t gpuprof_semaphores[GPUPROF_PROBE_COUNT];
void gpuprof_fire_process_v1(const void*, uint32_t, uint64_t);
void gpuprof_fire_launch_v1(const void*, uint32_t, uint64_t);
void gpuprof_fire_exec_v1(const void*, uint32_t, uint64_t);
void gpuprof_fire_pc_sample_v1(const void*, uint32_t, uint64_t);
void gpuprof_fire_name_v1(const void*, uint32_t, uint64_t);
void gpuprof_fire_module_v1(const void*, uint32_t, uint64_t);
void gpuprof_fire_device_v1(const void*, uint32_t, uint64_t);
void gpuprof_fire_window_v1(const void*, uint32_t, uint64_t);
void gpuprof_fire_drop_v1(const void*, uint32_t, uint64_t);
void gpuprof_fire_autoarm(const void*, uint32_t, uint64_t);
}

namespace gpuprof::shim {
namespace {

static_assert(GPUPROF_PROBE_COUNT == 11, "usdt_sites.S has a semaphore and a site for each probe");

// A line of its own each: launches and executions are counted by different threads.
struct alignas(64) Total {
  std::atomic<uint64_t> records{0};
};
constinit Total totals[GPUPROF_PROBE_COUNT]{};

// Service thread only.
constinit uint16_t last_semaphore[GPUPROF_PROBE_COUNT]{};

bool is_probe(gpuprof_probe probe) {
  return probe > GPUPROF_PROBE_INVALID && probe < GPUPROF_PROBE_COUNT;
}

void fire(gpuprof_probe probe, const void* records, uint32_t count, uint64_t seq) {
  switch (probe) {
    case GPUPROF_PROBE_PROCESS:
      return gpuprof_fire_process_v1(records, count, seq);
    case GPUPROF_PROBE_LAUNCH:
      return gpuprof_fire_launch_v1(records, count, seq);
    case GPUPROF_PROBE_EXEC:
      return gpuprof_fire_exec_v1(records, count, seq);
    case GPUPROF_PROBE_PC_SAMPLE:
      return gpuprof_fire_pc_sample_v1(records, count, seq);
    case GPUPROF_PROBE_NAME:
      return gpuprof_fire_name_v1(records, count, seq);
    case GPUPROF_PROBE_MODULE:
      return gpuprof_fire_module_v1(records, count, seq);
    case GPUPROF_PROBE_DEVICE:
      return gpuprof_fire_device_v1(records, count, seq);
    case GPUPROF_PROBE_WINDOW:
      return gpuprof_fire_window_v1(records, count, seq);
    case GPUPROF_PROBE_DROP:
      return gpuprof_fire_drop_v1(records, count, seq);
    case GPUPROF_PROBE_AUTOARM:  // only its semaphore means anything
    case GPUPROF_PROBE_INVALID:
    case GPUPROF_PROBE_COUNT:
      return;
  }
}

}  // namespace

uint16_t semaphore(gpuprof_probe probe) {
  if (!is_probe(probe)) return 0;
  // Written by the kernel, or through /proc/PID/mem, at any time.
  return __atomic_load_n(&gpuprof_semaphores[probe], __ATOMIC_ACQUIRE);
}

bool enabled(gpuprof_probe probe) { return semaphore(probe) != 0 && owned(); }

uint64_t emit(gpuprof_probe probe, const void* records, uint32_t count) {
  const uint64_t bytes = uint64_t{gpuprof_record_bytes(probe)} * count;
  if (bytes == 0 || bytes > GPUPROF_MAX_BATCH_BYTES || count > GPUPROF_MAX_BATCH_RECORDS) return 0;
  if (semaphore(probe) == 0 || !owned_by_caller()) return 0;
  const uint64_t seq = totals[probe].records.fetch_add(count, std::memory_order_relaxed);
  // The mirror is bumped before the hit: a process killed in between shows one batch too many
  // produced, never one that the reader got and nobody produced.
  if (gpuprof_status_page* page = channel().status_page()) {
    std::atomic_ref<uint64_t>(page->probe_totals[probe])
        .fetch_add(count, std::memory_order_relaxed);
  }
  fire(probe, records, count, seq);
  return count;
}

uint64_t emitted(gpuprof_probe probe) {
  return is_probe(probe) ? totals[probe].records.load(std::memory_order_relaxed) : 0;
}

bool semaphore_edge(gpuprof_probe probe) {
  if (!is_probe(probe)) return false;
  const uint16_t now = semaphore(probe);
  const bool rose = now > last_semaphore[probe];
  last_semaphore[probe] = now;
  return rose;
}

}  // namespace gpuprof::shim

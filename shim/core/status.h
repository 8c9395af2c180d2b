// SPDX-License-Identifier: Apache-2.0
//
// The status page (proto/memfd_layout.h) as the shim writes it, and the producer-side loss
// counters.
//
// The truth is in private memory; the page is a mirror for readers outside, so that a scribbled
// page cannot mislead the shim, and a process without a memfd works the same. Fields that belong
// together (state, reason, text) change under the page's seq; totals are single relaxed atomics.
//
// Threads: all functions from any thread. The writers of text share a spin lock held for a copy of
// at most 1 KiB and never across any call, and wait for it 20 ms at most: a state that comes to
// late loses its text, and the next heartbeat brings it to the page. Counters are lock-free. In a
// child or after disown() all of them leave the page alone.
#pragma once

#include <cstdint>

#include "proto/memfd_layout.h"
#include "proto/usdt_abi.h"
#include "shim/core/knobs.h"

namespace gpuprof::shim {

// --- state -------------------------------------------------------------------------------------
// `text` may be null (cleared) and is cut at the page's 1,024 bytes. Logs the change.
void set_state(gpuprof_state state, gpuprof_reason reason, const char* text);
gpuprof_state current_state();
gpuprof_reason current_reason();

// What `tier` is active now; epoch and arm/disarm counts for readers.
void set_tier(gpuprof_tier tier);
void set_epoch(uint32_t epoch);
// What is in force, where it differs from the knob (a CUPTI without the hash callback is eager).
void set_subscribe_mode(SubscribeMode mode);
void count_arm();
void count_disarm();
// Launches are recorded from now on, or not any more; the page tells since when, and how long not
// in all. One thread at a time.
void set_recording(bool on, uint64_t now_ns);
void set_buffers_outstanding(uint32_t buffers);
void set_cupti(uint32_t version, const char* path, gpuprof_cupti_origin origin);
void set_driver(uint32_t driver_version, gpuprof_libcuda_kind kind, const char* libcuda_path,
                const char* kernel_driver_version);

// --- PC sampling -------------------------------------------------------------------------------
struct PcStatus {
  gpuprof_pc_state state = GPUPROF_PC_OFF;
  gpuprof_pc_reason reason = GPUPROF_PC_REASON_NONE;
  uint32_t period = 0;    // log2 cycles as read back
  uint32_t contexts = 0;  // sampled now
};
// What became of the PC sampling that was asked for. `text` may be null (cleared), is cut at 511.
void set_pc_status(const PcStatus& status, const char* text);
// The GPUs that the controller shares out among processes; bits by device id.
struct PcClaims {
  uint64_t grant_serial = 0;  // in force
  uint32_t wanted = 0;
  uint32_t held = 0;

  friend bool operator==(const PcClaims& a, const PcClaims& b) = default;
};
void set_pc_claims(const PcClaims& claims);
// Devices from GPUPROF_PC_GPUS_MAX on have no place on the page and are not sampled by a grant.
void set_pc_gpu(uint32_t device_id, const uint8_t (&uuid)[16]);
// Adds to a counter of the page; lock-free. Unknown counters are ignored.
void count_pc(gpuprof_pc_counter counter, uint64_t count = 1);

// Once a round of the service thread: heartbeat, launch counts, module count, totals.
void publish_heartbeat(uint64_t now_ns);

// --- losses ------------------------------------------------------------------------------------
// Adds to a class; lock-free. Unknown classes are ignored.
void count_drop(gpuprof_drop_class drop_class, uint64_t count = 1);
uint64_t drop_total(gpuprof_drop_class drop_class);

// One launch callback seen, and whether the sampler drew it. Exact at any time. Each of the first
// 256 threads that launch has cache lines of its own, so that launches on different cores do not
// fight.
void count_launch(bool drawn);

// Emits drop_v1 for every class whose total changed since the last time; with `final` for every
// class that is not zero, plus FINAL_TOTAL of each probe. Service thread, or the exit path after it
// has stopped. A second thread at the same time does nothing.
void emit_drops(bool final);
// The next emit_drops() emits everything again: somebody new is attached.
void forget_emitted_drops();

// process_v1 for this process; at the end of InitializeInjection. Answers emit()'s result.
uint64_t emit_process(int memfd);

}  // namespace gpuprof::shim

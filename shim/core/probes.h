// SPDX-License-Identifier: Apache-2.0
//
// The USDT probes of proto/usdt_abi.h: semaphores, totals, and the one way to fire.
//
// The sites are written in assembly (usdt_sites.S), one function each: a 1-byte nop, a 5-byte nop
// and a return. The arguments are where the calling convention puts the function's own, which is
// what the notes say; a function with nothing on its stack has no red zone that the optimised
// uprobe of Linux 6.18 could corrupt, and its caller, which makes a call, keeps nothing below its
// stack pointer either.
//
// Threads: every function here is lock-free and may be called from any thread.
#pragma once

#include <cstdint>

#include "proto/usdt_abi.h"

namespace gpuprof::shim {

// Whether somebody is attached to the probe (its semaphore is above zero) and we are not inert. One
// or two loads; may run per launch.
bool enabled(gpuprof_probe probe);

// The semaphore itself. AUTOARM's arms new processes; the others only gate emission.
uint16_t semaphore(gpuprof_probe probe);

// Fires `probe` once with `count` records. Answers the records emitted: `count`, or 0 if nobody is
// attached, the caller is not the owner process, or the batch is out of bounds (count above
// GPUPROF_MAX_BATCH_RECORDS, bytes above GPUPROF_MAX_BATCH_BYTES, count 0). What was not fired is
// not in `seq`. `records` needs to live for the call only.
uint64_t emit(gpuprof_probe probe, const void* records, uint32_t count);

// Records of `probe` emitted so far: the next batch's seq.
uint64_t emitted(gpuprof_probe probe);

// True when somebody attached since the last call: the semaphore rose. Service thread only, once a
// round and probe. A detach and an attach between two rounds look like nothing, so arming replays
// metadata as well (see metadata.h).
bool semaphore_edge(gpuprof_probe probe);

}  // namespace gpuprof::shim

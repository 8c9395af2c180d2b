// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shim/core/lease.h"
#include "shim/core/status_code.h"
#include "shim/cupti/driver.h"

namespace gpuprof::cupti {

/// The shim's one thread: control page, leases, arming steps, flushes, metadata, heartbeat. Idle it
/// wakes four times a second. Everything it may wait for (the Guard, CUPTI itself) it waits for
/// with no lock that a callback takes.

/// Starts the thread; it does nothing until release_service(). InitializeInjection.
shim::Status start_service(const Driver& driver) noexcept;
/// Grants what arms at init, before release_service().
void grant_at_init(gpuprof_tier tier) noexcept;
void release_service() noexcept;

/// Ends the thread's sleep. Any thread, callbacks included.
void wake_service() noexcept;

/// A launch was seen, so cuInit has returned and device facts may be read. Any thread.
void note_launch() noexcept;

/// The exit handler: has the service thread do the last FlushAll(1) and the final totals, waits for
/// it for 2 s at most, and leaves the shim inert. The exiting thread.
void stop_service_at_exit() noexcept;

}  // namespace gpuprof::cupti

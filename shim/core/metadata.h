// SPDX-License-Identifier: Apache-2.0
//
// Metadata that a late reader needs again: names, devices, windows, drop totals.
#pragma once

#include "proto/usdt_abi.h"

namespace gpuprof::shim {

inline constexpr uint32_t kMaxDevices = 64;

// Remembers the device (by device_id) and emits it if it is new or changed; its sampling period is
// what publish_sampling_period() said last. False if device_id is kMaxDevices or above. Any thread;
// two writers of one device must not race.
bool publish_device(const gpuprof_device_v1& device);
// The period of a device that is known (log2 cycles, 0: off). Any thread.
void publish_sampling_period(uint32_t device_id, uint32_t period);
// Copies what is known of a device; false if nothing is. Any thread.
bool known_device(uint32_t device_id, gpuprof_device_v1* out);

// Emits window_v1 and remembers a window that is open, by context, for replay. Any thread.
void publish_window(const gpuprof_window_v1& window);

// Once a round of the service thread: replays what belongs to each probe whose semaphore rose.
void replay_on_edges();
// Replays everything; service thread, when a new controller arms.
void replay_all();

}  // namespace gpuprof::shim

// SPDX-License-Identifier: Apache-2.0
//
// Metadata that a late reader needs again: names, devices, windows, drop totals.
#pragma once

#include "proto/usdt_abi.h"

namespace gpuprof::shim {

inline constexpr uint32_t kMaxDevices = 64;

// Remembers the device (by device_id) and emits it if it is new or changed. False if device_id is
// kMaxDevices or above. Any thread; two writers of one device must not race.
bool publish_device(const gpuprof_device_v1& device);

// Emits window_v1 and remembers a window that is open, by context, for replay. Any thread.
void publish_window(const gpuprof_window_v1& window);

// Once a round of the service thread: replays what belongs to each probe whose semaphore rose.
void replay_on_edges();
// Replays everything; service thread, when a new controller arms.
void replay_all();

}  // namespace gpuprof::shim

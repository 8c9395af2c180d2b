// SPDX-License-Identifier: Apache-2.0
#include "shim/core/metadata.h"

#include <cstring>

#include "shim/core/name_table.h"
#include "shim/core/owner.h"
#include "shim/core/probes.h"
#include "shim/core/spin_lock.h"
#include "shim/core/status.h"

namespace gpuprof::shim {
namespace {

constexpr uint32_t kMaxOpenWindows = 64;

// Both guarded by `lock`.
constinit SpinLock lock;
constinit gpuprof_device_v1 devices[kMaxDevices]{};
constinit bool device_known[kMaxDevices]{};
constinit gpuprof_window_v1 windows[kMaxOpenWindows]{};  // event INVALID: free

void remember_window(const gpuprof_window_v1& window) {
  SpinGuard guard(lock);
  gpuprof_window_v1* free_slot = nullptr;
  for (gpuprof_window_v1& slot : windows) {
    if (slot.event == GPUPROF_WINDOW_INVALID) {
      if (free_slot == nullptr) free_slot = &slot;
    } else if (slot.window_id == window.window_id) {
      slot.event = GPUPROF_WINDOW_INVALID;
      free_slot = &slot;
      break;
    }
  }
  if (window.event == GPUPROF_WINDOW_OPEN && free_slot != nullptr) *free_slot = window;
}

void replay_devices() {
  for (uint32_t i = 0; i < kMaxDevices; ++i) {
    gpuprof_device_v1 device;
    {
      SpinGuard guard(lock);
      if (!device_known[i]) continue;
      device = devices[i];
    }
    emit(GPUPROF_PROBE_DEVICE, &device, 1);
  }
}

void replay_windows() {
  for (uint32_t i = 0; i < kMaxOpenWindows; ++i) {
    gpuprof_window_v1 window;
    {
      SpinGuard guard(lock);
      if (windows[i].event == GPUPROF_WINDOW_INVALID) continue;
      window = windows[i];
    }
    emit(GPUPROF_PROBE_WINDOW, &window, 1);
  }
}

void replay_drops() {
  forget_emitted_drops();
  emit_drops(false);
}

}  // namespace

bool publish_device(const gpuprof_device_v1& device) {
  if (device.device_id >= kMaxDevices || !owned()) return false;
  gpuprof_device_v1 fresh = device;
  set_pc_gpu(device.device_id, device.uuid);  // first: a device that is known may be wanted
  {
    SpinGuard guard(lock);
    gpuprof_device_v1& known = devices[device.device_id];
    fresh.sampling_period = known.sampling_period;
    if (device_known[device.device_id] && memcmp(&known, &fresh, sizeof fresh) == 0) return true;
    known = fresh;
    device_known[device.device_id] = true;
  }
  emit(GPUPROF_PROBE_DEVICE, &fresh, 1);
  return true;
}

void publish_sampling_period(uint32_t device_id, uint32_t period) {
  if (device_id >= kMaxDevices || !owned()) return;
  gpuprof_device_v1 device;
  {
    SpinGuard guard(lock);
    gpuprof_device_v1& known = devices[device_id];
    if (!device_known[device_id] || known.sampling_period == period) return;
    known.sampling_period = period;
    device = known;
  }
  emit(GPUPROF_PROBE_DEVICE, &device, 1);
}

bool known_device(uint32_t device_id, gpuprof_device_v1* out) {
  if (device_id >= kMaxDevices) return false;
  SpinGuard guard(lock);
  if (!device_known[device_id]) return false;
  *out = devices[device_id];
  return true;
}

void publish_window(const gpuprof_window_v1& window) {
  if (!owned()) return;
  remember_window(window);
  emit(GPUPROF_PROBE_WINDOW, &window, 1);
}

void replay_on_edges() {
  if (semaphore_edge(GPUPROF_PROBE_NAME)) names().replay();
  if (semaphore_edge(GPUPROF_PROBE_DEVICE)) replay_devices();
  if (semaphore_edge(GPUPROF_PROBE_WINDOW)) replay_windows();
  if (semaphore_edge(GPUPROF_PROBE_DROP)) replay_drops();
}

void replay_all() {
  names().replay();
  replay_devices();
  replay_windows();
  replay_drops();
}

}  // namespace gpuprof::shim

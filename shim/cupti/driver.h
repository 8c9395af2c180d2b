// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/memfd_layout.h"
#include "shim/cupti/mapped_objects.h"

namespace gpuprof::cupti {

/// The libcuda that this process runs on. Nothing of it is linked: its functions come from the copy
/// that is mapped, whichever that is.
struct Driver {
  void* library = nullptr;  // dlopen handle of the mapped libcuda, null if it has none
  uint32_t version = 0;     // cuDriverGetVersion(), 0 if unknown; 13000 is CUDA 13.0
  gpuprof_libcuda_kind kind = GPUPROF_LIBCUDA_UNKNOWN;
  char path[512] = {};           // real path of libcuda
  char kernel_version[32] = {};  // of the kernel driver, "" if unknown
};

/// Finds the mapped libcuda and asks its version, the one CUDA call that is legal before cuInit has
/// finished (cuda.h: it needs no initialisation). InitializeInjection only.
void find_driver(const MappedObjects& objects, Driver* driver) noexcept;

/// Whether CUPTI 13.2 can start on this libcuda. From 13.2 on CUPTI starts at the first call of any
/// of its functions, and asks libcuda for a table that 13.0 and 13.1 do not ask for. Where it
/// cannot start, 13.2 (23, 75 and 86 alike) calls itself without end, which ends the process; 13.3
/// answers UNKNOWN.
bool can_start_cupti_13_2(const Driver& driver) noexcept;

/// Emits device_v1 for every device that the process sees. Makes CUDA calls (cuDeviceGet...), so
/// only on the service thread, and only once a launch was seen, which proves that cuInit has
/// returned. Answers the number of devices.
uint32_t publish_devices(const Driver& driver) noexcept;

}  // namespace gpuprof::cupti

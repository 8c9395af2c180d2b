// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/memfd_layout.h"
#include "shim/cupti/vendor.h"

namespace gpuprof::cupti {

/// Why a device is not sampled, for the status page.
struct PcRefusal {
  gpuprof_pc_reason reason = GPUPROF_PC_REASON_NONE;
  bool heals = false;  // worth trying again while it is asked for
  bool deaf = false;   // by a start: CUPTI traces nothing any more (Arming::lose)
  char text[sizeof(gpuprof_status_page::pc_reason_text)] = {};
};

/// Facts that a CUPTI answer does not carry, read on the service thread.
struct PcSurroundings {
  bool mps = false;            // an MPS control pipe is there
  int admin_only = -1;         // RmProfilingAdminOnly of the driver, -1 unknown
  uint32_t compute_major = 0;  // of the device in question, 0 unknown
  uint32_t compute_minor = 0;
};

/// Reads what is the same for all devices. System calls and files: the service thread.
PcSurroundings read_surroundings() noexcept;

/// What `step` answering `result` (`meaning`: CUPTI's text) means, in words a user can act on.
void explain(const char* step, CUptiResult result, const char* meaning,
             const PcSurroundings& around, PcRefusal* refusal) noexcept;

/// A refusal of our own.
void refuse(PcRefusal* refusal, gpuprof_pc_reason reason, bool heals, const char* format,
            ...) noexcept __attribute__((format(printf, 4, 5)));

}  // namespace gpuprof::cupti

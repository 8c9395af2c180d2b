// SPDX-License-Identifier: Apache-2.0
//
// The seam between memfd.cc, which makes the page, and status.cc, which writes it.
#pragma once

#include <cstdint>

#include "proto/memfd_layout.h"

namespace gpuprof::shim {

// Writes everything that status.cc knows into the fresh, zeroed page, the magic last.
void begin_status_mirror(gpuprof_status_page& page, uint64_t copies_offset, uint64_t copies_bytes);

}  // namespace gpuprof::shim

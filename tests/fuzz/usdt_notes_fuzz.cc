// SPDX-License-Identifier: Apache-2.0
//
// The shim's file, which any user may map another file in the place of.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "daemon/probe/usdt_notes.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto sites = gpuprof::probe::parse_usdt_notes({data, size});
  if (!sites) return 0;
  for (const auto& site : *sites) {
    // What a uprobe is then attached to.
    if (site.offset >= size || site.semaphore_offset > size - 2) std::abort();
    if (site.probe == GPUPROF_PROBE_INVALID || site.probe >= GPUPROF_PROBE_COUNT) std::abort();
  }
  return 0;
}

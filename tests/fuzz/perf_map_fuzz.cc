// SPDX-License-Identifier: Apache-2.0
//
// /tmp/perf-PID.map as a target writes it, in two pieces.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "daemon/symbolize/perf_map.h"
#include "daemon/unwind/address_space.h"
#include "daemon/unwind/file_cache.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using gpuprof::symbolize::PerfMap;
  // Whose map it would be; it has none.
  static gpuprof::unwind::FileCache files;
  static const auto space =
      gpuprof::unwind::AddressSpace::open({static_cast<uint32_t>(::getpid()), 0}, files);
  if (!space) std::abort();
  PerfMap map(**space);
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  map.parse(text.substr(0, size / 2));
  (void)map.find(0x1000);
  map.parse(text.substr(size / 2));
  if (map.size() > PerfMap::kMaxEntries) std::abort();
  for (const uint64_t pc :
       {uint64_t{0}, uint64_t{1}, uint64_t{0x1000}, uint64_t{0x7f0000001000}, UINT64_MAX}) {
    if (map.find(pc).size() > PerfMap::kMaxNameBytes) std::abort();
  }
  return 0;
}

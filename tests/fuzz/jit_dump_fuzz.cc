// SPDX-License-Identifier: Apache-2.0
//
// jit-PID.dump as a target writes it, in two pieces.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "daemon/symbolize/jit_dump.h"
#include "daemon/unwind/address_space.h"
#include "daemon/unwind/file_cache.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using gpuprof::symbolize::JitDump;
  // Whose dump it would be; it has none.
  static gpuprof::unwind::FileCache files;
  static const auto space =
      gpuprof::unwind::AddressSpace::open({static_cast<uint32_t>(::getpid()), 0}, files);
  if (!space) std::abort();
  JitDump dump(**space);
  const auto bytes = std::as_bytes(std::span(data, size));
  const uint64_t done = dump.parse(bytes.first(size / 2));
  if (done < size) dump.parse(bytes.subspan(done));
  if (dump.size() > JitDump::kMaxCodes) std::abort();
  for (const uint64_t pc : {uint64_t{0}, uint64_t{0x1000}, uint64_t{0x2010}, UINT64_MAX}) {
    const auto code = dump.find(pc);
    if (code && code->name.size() > JitDump::kMaxNameBytes) std::abort();
  }
  return 0;
}

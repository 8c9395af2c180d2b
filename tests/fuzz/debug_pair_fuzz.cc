// SPDX-License-Identifier: Apache-2.0
//
// A file and the one that dwz moved a part of its debug information to: 4 bytes of the first one's
// size, both. elfutils, which parses them, is not instrumented here: what is found there is a
// crash.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "daemon/symbolize/debug_info.h"
#include "daemon/unwind/elf_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gpuprof;
  uint32_t first = 0;
  if (size < sizeof first) return 0;
  std::memcpy(&first, data, sizeof first);
  data += sizeof first;
  size -= sizeof first;
  if (first > size) return 0;
  auto file = unwind::ElfFile::from_memory({data, data + first});
  auto alternate = unwind::ElfFile::from_memory({data + first, data + size});
  if (!file || !(*file)->decompressed_bytes()) return 0;
  const bool pair = alternate && (*alternate)->decompressed_bytes();
  const auto debug =
      symbolize::DebugInfo::open((*file)->elf(), pair ? (*alternate)->elf() : nullptr);
  if (debug == nullptr) return 0;
  for (const auto& segment : (*file)->segments()) {
    const uint64_t step = segment.memory_size / 24 + 1;
    for (uint64_t i = 0; i < 25; ++i) (void)debug->find(segment.address + i * step);
  }
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
//
// An executable file of a target: segments, call frame information, symbols, DWARF, .gnu_debugdata.
// The symbols and DWARF are parsed by elfutils, what is compressed by liblzma, which are not
// instrumented here: what is found there is a crash.
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "daemon/symbolize/debug_info.h"
#include "daemon/symbolize/mini_debug.h"
#include "daemon/symbolize/symbol_table.h"
#include "daemon/unwind/elf_file.h"
#include "tests/fuzz/ask_rule.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gpuprof;
  auto file = unwind::ElfFile::from_memory({data, data + size});
  if (!file) return 0;
  const symbolize::SymbolTable symbols((*file)->elf());
  (void)symbolize::read_mini_debug((*file)->elf());
  const auto debug =
      (*file)->decompressed_bytes() ? symbolize::DebugInfo::open((*file)->elf()) : nullptr;
  int questions = 64;
  for (const auto& segment : (*file)->segments()) {
    const uint64_t step = segment.memory_size / 24 + 1;
    for (uint64_t i = 0; i < 25 && questions > 0; ++i, --questions) {
      const uint64_t address = segment.address + i * step;
      fuzz::ask_rule((*file)->cfi(), address);
      (void)symbols.find(address);
      if (debug != nullptr) (void)debug->find(address);
    }
  }
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
//
// The result of symbolising one pc of one process: value types, no handles.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpuprof::symbolize {

// One object that pcs were found in: an ELF file mapped into the process, the vdso, or JIT code.
struct Module {
  std::string path;      // as the target sees it; "[vdso]", "[jit]" or "[unknown]" for the rest
  std::string build_id;  // lower-case hex, empty if there is none
  uint64_t start = 0;    // lowest and highest+1 ELF virtual address of its executable segments;
  uint64_t limit = 0;    // for [jit] and [unknown]: absolute addresses
};

struct SourceFrame {
  std::string function;     // demangled; never empty: "[module+0xoffset]" is not a name, see below
  std::string system_name;  // as in the symbol table
  std::string file;         // empty if unknown
  uint32_t line = 0;        // 0 if unknown
  uint32_t start_line = 0;  // of the function, 0 if unknown
};

// `frames` is innermost first: inlined functions, then the real one. Empty: no symbol was found,
// and the reader names the frame after the module ("[libfoo.so]"), never after the address.
struct SymbolizedPc {
  uint32_t module = 0;   // index into the symbolizer's modules()
  uint64_t address = 0;  // ELF virtual address (pc - load bias), or the pc itself
  std::vector<SourceFrame> frames;
};

}  // namespace gpuprof::symbolize

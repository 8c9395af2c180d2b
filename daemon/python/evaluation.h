// SPDX-License-Identifier: Apache-2.0
//
// Evaluation: which native frames run Python code.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "daemon/python/memory.h"

namespace gpuprof::python {

// A native frame is one of _PyEval_EvalFrameDefault if its pc lies in that function, or if its
// caller calls that function: compilers put parts of it elsewhere (.cold), and interpreters built
// with tail calls jump from one instruction's function to the next, all without names in a
// stripped file. Under `-X perf` the call is a trampoline's, generated code that calls nothing else
// (Python/asm_trampoline.S). The call is read from the target once per return address.
class Evaluation {
 public:
  static constexpr size_t kMaxCallSites = 16 * 1024;

  // [entry, end) is the function as its symbol has it.
  Evaluation(uint64_t entry, uint64_t end, ReadMemory read);

  // `pc` lies in the interpreter's file. `caller` is the calling frame's pc as RawStack has it (its
  // return address - 1), 0 if none; `generated`: it lies in no file.
  [[nodiscard]] bool is_frame(uint64_t pc, uint64_t caller, bool generated);

 private:
  [[nodiscard]] bool calls_entry(uint64_t return_address) const;
  [[nodiscard]] bool is_trampoline(uint64_t return_address) const;
  [[nodiscard]] bool leads_to_entry(uint64_t target) const;

  uint64_t entry_;
  uint64_t end_;
  ReadMemory read_;
  std::unordered_map<uint64_t, bool> call_sites_;  // by return address
};

}  // namespace gpuprof::python

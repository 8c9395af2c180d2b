// SPDX-License-Identifier: Apache-2.0
//
// A launch's user registers and the top of its user stack, as BPF copied them.
#pragma once

#include <cstdint>
#include <span>

#include "proto/ring_abi.h"

namespace gpuprof {

// Views into the ring: valid only while the callback that hands them out runs.
struct StackSample {
  std::span<const uint64_t> regs;  // GPUPROF_REGS_MAX, DWARF numbering
  uint64_t stack_address = 0;      // address of bytes[0]
  uint64_t stack_top = 0;          // 0 if unknown
  std::span<const uint8_t> bytes;
  uint32_t flags = 0;  // GPUPROF_STACK_*
  // The thread's Python frames, innermost first; empty where it has none.
  std::span<const gpuprof_python_frame> python = {};
  uint32_t python_end = GPUPROF_PYTHON_MORE;  // enum gpuprof_python_end
};

}  // namespace gpuprof

// SPDX-License-Identifier: Apache-2.0
//
// Takes a sample of the calling thread as BPF would: registers at a call and the stack above.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/base/stack_sample.h"

namespace gpuprof::unwind::test {

struct Sample {
  std::vector<uint64_t> regs = std::vector<uint64_t>(GPUPROF_REGS_MAX);
  std::vector<uint8_t> bytes;
  uint64_t stack_address = 0;
  uint64_t stack_top = 0;
  uint32_t flags = 0;

  [[nodiscard]] StackSample view() const { return {regs, stack_address, stack_top, bytes, flags}; }
};

// Before a capture in a signal handler, which may neither allocate nor read files: memory for
// `limit` bytes, and where the calling thread's stack ends.
void prepare_capture(Sample* sample, uint64_t limit);

// Fills `sample` with the registers at its own entry and the bytes from the stack pointer to the
// stack's top (at most `limit`). The leaf frame is the assembly entry itself. x86-64.
extern "C" void gpuprof_test_capture(Sample* sample, uint64_t limit);

}  // namespace gpuprof::unwind::test

// SPDX-License-Identifier: Apache-2.0
//
// JitStep: how generated code without call frame information returns.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace gpuprof::unwind {

// Offsets are from the stack pointer at the return address.
struct JitStep {
  struct Pop {
    uint8_t reg = 0;
    uint32_t offset = 0;
  };
  bool known = false;
  uint8_t pop_count = 0;
  uint32_t return_offset = 0;
  std::array<Pop, 8> pops = {};
};

// Reads the epilogue that starts at a return address: `add $n,%rsp` and `pop`,
// then `ret`. CPython's perf trampolines are
// exactly a call and such an epilogue, with a frame pointer from 3.13 on and without one before
// (Python/asm_trampoline.S). x86-64 only; elsewhere `known` is false, and so it is for anything
// else.
JitStep decode_epilogue(std::span<const uint8_t> code);

}  // namespace gpuprof::unwind

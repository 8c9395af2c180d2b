// SPDX-License-Identifier: Apache-2.0
#include "daemon/unwind/jit_step.h"

#include <cstring>
#include <initializer_list>

namespace gpuprof::unwind {
namespace {

// General registers in instruction encoding order (rax rcx rdx rbx rsp rbp rsi rdi) as DWARF
// numbers (System V psABI, x86-64, figure 3.36); 8 to 15 are the same in both.
constexpr uint8_t kDwarfRegister[8] = {0, 2, 1, 3, 7, 6, 4, 5};

bool starts_with(std::span<const uint8_t> code, std::initializer_list<uint8_t> bytes) {
  if (code.size() < bytes.size()) return false;
  return std::memcmp(code.data(), bytes.begin(), bytes.size()) == 0;
}

}  // namespace

JitStep decode_epilogue(std::span<const uint8_t> code) {
#if !defined(__x86_64__)
  (void)code;
  return {};
#else
  constexpr uint32_t kMaxOffset = 1 << 16;
  JitStep step;
  uint32_t offset = 0;
  while (!code.empty() && offset < kMaxOffset) {
    if (code[0] == 0xc3) {  // ret
      step.known = true;
      step.return_offset = offset;
      return step;
    }
    if (starts_with(code, {0x48, 0x83, 0xc4}) && code.size() > 3) {  // add $imm8,%rsp
      if (code[3] >= 0x80) return {};
      offset += code[3];
      code = code.subspan(4);
      continue;
    }
    if (starts_with(code, {0x48, 0x81, 0xc4}) && code.size() > 6) {  // add $imm32,%rsp
      uint32_t imm = 0;
      std::memcpy(&imm, &code[3], 4);
      if (imm >= kMaxOffset) return {};
      offset += imm;
      code = code.subspan(7);
      continue;
    }
    const bool extended = code[0] == 0x41 && code.size() > 1;
    const uint8_t opcode = extended ? code[1] : code[0];
    if (opcode < 0x58 || opcode > 0x5f || step.pop_count == step.pops.size()) return {};
    const auto reg = static_cast<uint8_t>(opcode - 0x58);
    if (!extended && reg == 4) return {};  // pop %rsp
    step.pops[step.pop_count++] = {extended ? static_cast<uint8_t>(reg + 8) : kDwarfRegister[reg],
                                   offset};
    offset += 8;
    code = code.subspan(extended ? 2 : 1);
  }
  return {};
#endif
}

}  // namespace gpuprof::unwind

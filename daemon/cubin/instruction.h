// SPDX-License-Identifier: Apache-2.0
//
// Instruction: of a GPU's machine code, no more than where it goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gpuprof::cubin {

inline constexpr uint64_t kInstructionBytes = 16;  // from sm_70 on

struct Instruction {
  enum class Kind : uint8_t {
    kOther,
    kNop,
    kCall,      // CALL.REL to `displacement`
    kBranch,    // BRA to `displacement`, maybe under a condition
    kAbsolute,  // CALL.ABS or JMP; a relocation says where to
    kIndirect,  // to an address of its section that is in a register: CALL.REL R, BRX, BRXU, JMX
  };
  Kind kind = Kind::kOther;
  bool ends = false;         // never goes on to the next one: EXIT, RET, BRA without a condition
  int64_t displacement = 0;  // from the instruction's end, in bytes
};

// NVIDIA documents mnemonics only. The encoding was read off nvdisasm 13.5's listings of
// nvcc 13.0's code for sm_75 to sm_121 and of ptxas 11.8's and 12.9's, where it holds for every
// CALL and BRA (ADR 0019; cubin_call_sites_test compares all that the fixtures have).
[[nodiscard]] bool is_known_encoding(uint32_t sm);

// The first of `code`, which has kInstructionBytes or more; `sm` has a known encoding.
[[nodiscard]] Instruction decode_instruction(uint32_t sm, std::span<const std::byte> code);

}  // namespace gpuprof::cubin

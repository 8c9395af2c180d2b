// SPDX-License-Identifier: Apache-2.0
//
// Instructions as nvcc's listings have them (nvdisasm -hex).
#pragma once

#include <cstdint>
#include <string>

namespace gpuprof::cubin::test {

inline std::string instruction(uint64_t low, uint64_t high) {
  std::string bytes(reinterpret_cast<const char*>(&low), sizeof low);
  return bytes.append(reinterpret_cast<const char*>(&high), sizeof high);
}

inline std::string exit_instruction() {
  return instruction(0x000000000000794d, 0x000fea0003800000);
}
inline std::string conditional_exit() {
  return instruction(0x000000000000894d, 0x000fea0003800000);  // @!P0 EXIT
}
inline std::string ret() { return instruction(0x0000000014007950, 0x001fea0003e00000); }
inline std::string nop() { return instruction(0x0000000000007918, 0x000fc00000000000); }
inline std::string move() { return instruction(0x000001a000147802, 0x000fc00000000f00); }
inline std::string call_absolute() { return instruction(0x0000000000007943, 0x003fea0003c00000); }
inline std::string call_register() {
  return instruction(0xfffffffc06987344, 0x022fea0003c3ffff);  // CALL.REL.NOINC R6
}
inline std::string branch_indexed() { return instruction(0xfffffffc02bc7949, 0x000fea000383ffff); }

// `opcode`: 0x7944, 0x7947.
inline std::string transfer(uint32_t sm, uint64_t opcode, uint64_t high, uint64_t from,
                            uint64_t to) {
  const uint64_t displacement = to - from - 16;
  if (sm < 90) {
    return instruction(opcode | displacement << 32, high | (displacement >> 32 & 0x3ffff));
  }
  const uint64_t quarter = static_cast<uint64_t>(static_cast<int64_t>(displacement) / 4);
  return instruction(opcode | (quarter & 0xff) << 16 | quarter >> 8 << 34,
                     high | (quarter >> 38 & 0x3ffff));
}
inline std::string call(uint64_t from, uint64_t to, uint32_t sm = 90) {
  return transfer(sm, 0x7944, 0x000fea0003c00000, from, to);
}
inline std::string branch(uint64_t from, uint64_t to, uint32_t sm = 90) {
  return transfer(sm, 0x7947, 0x000fea0003800000, from, to);
}
inline std::string conditional_branch(uint64_t from, uint64_t to, uint32_t sm = 90) {
  return transfer(sm, 0x8947, 0x000fea0003800000, from, to);
}

}  // namespace gpuprof::cubin::test

// SPDX-License-Identifier: Apache-2.0
#include "daemon/cubin/instruction.h"

#include <cstring>

namespace gpuprof::cubin {
namespace {

// Bits 0 to 8 are the operation, 9 to 11 the form of its operands, of which 4 is an immediate.
enum Operation : uint32_t {
  kNop = 0x118,
  kCallAbsolute = 0x143,
  kCallRelative = 0x144,
  kBranch = 0x147,
  kBranchIndexed = 0x149,
  kJump = 0x14a,
  kJumpIndexed = 0x14c,
  kExit = 0x14d,
  kReturn = 0x150,
  kBranchIndexedUniform = 0x158,
  kJumpIndexedUniform = 0x159,
};
constexpr uint32_t kImmediate = 4;
constexpr uint32_t kUniformPredicate = 2;  // of a branch: BRA.U UP0

constexpr uint32_t kFirstSm = 70;
constexpr uint32_t kFirstScatteredSm = 90;
constexpr uint32_t kLastSm = 121;

int64_t sign_extend(uint64_t value, unsigned bits) {
  const unsigned unused = 64 - bits;
  return static_cast<int64_t>(value << unused) >> unused;
}

// Up to sm_89 bits 32 to 81, of which the lowest two are the branch's kind. From sm_90 on a quarter
// of it, in bits 16 to 23 and above them 34 to 81.
int64_t displacement_of(uint32_t sm, uint64_t low, uint64_t high) {
  if (sm < kFirstScatteredSm) return sign_extend((low >> 32 & ~3ull) | high << 32, 50);
  return sign_extend(low >> 16 & 0xff, 64) * 4 + sign_extend(low >> 34 | high << 30, 48) * 0x400;
}

// Its predicates, bits 12 to 15 and 87 to 90, are both the one that is always true.
bool is_unconditional(uint64_t low, uint64_t high) {
  return (low >> 12 & 0xf) == 7 && (high >> 23 & 0xf) == 7;
}

}  // namespace

bool is_known_encoding(uint32_t sm) { return sm >= kFirstSm && sm <= kLastSm; }

Instruction decode_instruction(uint32_t sm, std::span<const std::byte> code) {
  uint64_t low = 0, high = 0;
  std::memcpy(&low, code.data(), sizeof low);
  std::memcpy(&high, code.data() + sizeof low, sizeof high);
  using Kind = Instruction::Kind;
  const auto form = static_cast<uint32_t>(low >> 9 & 7);
  const bool immediate = form == kImmediate;
  switch (low & 0x1ff) {
    case kNop:
      return {immediate ? Kind::kNop : Kind::kOther, false, 0};
    case kCallAbsolute:  // by a register: to what a relocation gave the address of
      return {immediate ? Kind::kAbsolute : Kind::kOther, false, 0};
    case kCallRelative:
      if (!immediate) return {Kind::kIndirect, false, 0};
      return {Kind::kCall, false, displacement_of(sm, low, high)};
    case kBranch: {
      if (!immediate && form != kUniformPredicate) return {Kind::kIndirect, false, 0};
      // 2 and 3 are .DIV and .CONV, which go on to the next where the warp is of one mind.
      const bool by_warp = (low >> 32 & 2) != 0;
      return {Kind::kBranch, immediate && !by_warp && is_unconditional(low, high),
              displacement_of(sm, low, high)};
    }
    case kJump:
      return {immediate ? Kind::kAbsolute : Kind::kIndirect, false, 0};
    case kBranchIndexed:
    case kJumpIndexed:
    case kBranchIndexedUniform:
    case kJumpIndexedUniform:
      return {Kind::kIndirect, false, 0};
    case kExit:
    case kReturn:
      return {Kind::kOther, immediate && is_unconditional(low, high), 0};
    default:
      return {};
  }
}

}  // namespace gpuprof::cubin

// SPDX-License-Identifier: Apache-2.0
//
// CfiRow: what the call frame instructions of a CIE and an FDE say at one address.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "daemon/unwind/cfi_section.h"
#include "daemon/unwind/machine.h"

namespace gpuprof::unwind {

// Registers that rules are kept for: the general ones and x86-64's return address. Instructions for
// others (vector registers) are read and dropped.
inline constexpr unsigned kMaxRuleRegisters = 32;
constexpr unsigned rule_registers(Machine machine) {
  return machine == Machine::kX86_64 ? 17 : kMaxRuleRegisters;
}

enum class Saved : uint8_t {
  kUndefined,  // also: nothing is said
  kSameValue,
  kOffset,         // at CFA + value
  kValOffset,      // is CFA + value
  kRegister,       // in register `value`
  kExpression,     // at what the block at section offset `value` gives
  kValExpression,  // is what that block gives
};

struct SavedRegister {
  Saved how = Saved::kUndefined;
  uint64_t value = 0;
};

enum class CfaKind : uint8_t { kUndefined, kRegister, kExpression, kInvalid };

struct CfiRow {
  CfaKind cfa = CfaKind::kUndefined;
  uint64_t cfa_register = 0;
  uint64_t cfa_value = 0;  // offset, or section offset of a block
  std::array<SavedRegister, kMaxRuleRegisters> registers;
};

// A program is at most this long, its CIE's included. The longest of the libraries looked at has
// 60,768 bytes (cuFFT); most have less than 100.
inline constexpr uint64_t kMaxProgramBytes = 1 << 20;
// DW_CFA_remember_state without DW_CFA_restore_state; compilers need one.
inline constexpr size_t kMaxRememberedRows = 64;

// Nothing if a program is malformed, too long or remembers too much. Adds what it took to `cost`:
// 1 for each byte (1 to 2 ns), kRowCost for each row copied.
inline constexpr uint64_t kRowCost = 16;
std::optional<CfiRow> row_at(const CfiSection& section, const Fde& fde, Machine machine,
                             uint64_t address, uint64_t& cost);

}  // namespace gpuprof::unwind

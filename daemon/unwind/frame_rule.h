// SPDX-License-Identifier: Apache-2.0
//
// FrameRule: how to find the caller of one pc, compiled from call frame information.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace gpuprof::unwind {

// Registers in DWARF numbering, as in StackSample: x86-64 0..15 and 16 = rip; aarch64 0..30 and
// 31 = sp, 32 = pc.
inline constexpr unsigned kMaxRegisters = 34;

struct Registers {
  uint64_t value[kMaxRegisters] = {};
  uint64_t valid = 0;  // bit per register

  [[nodiscard]] bool has(unsigned reg) const { return reg < kMaxRegisters && ((valid >> reg) & 1); }
  void set(unsigned reg, uint64_t v) {
    value[reg] = v;
    valid |= uint64_t{1} << reg;
  }
};

// The copied stack. Every read is bounded.
struct StackView {
  uint64_t address = 0;
  std::span<const uint8_t> bytes;

  [[nodiscard]] uint64_t end() const { return address + bytes.size(); }
  [[nodiscard]] std::optional<uint64_t> read(uint64_t at, unsigned size = 8) const;
};

// One operation of a DWARF expression; `a` and `b` are its operands, for branches the index of the
// target operation.
struct ExprOp {
  uint8_t atom = 0;
  int64_t a = 0;
  int64_t b = 0;
};

// Evaluates a CFI expression. `cfa` is what DW_OP_call_frame_cfa pushes (none while the CFA itself
// is being computed). Nothing is returned if the expression needs what is not in the copy, is
// malformed or runs longer than kMaxExprSteps.
inline constexpr int kMaxExprSteps = 256;
std::optional<uint64_t> evaluate(std::span<const ExprOp> ops, const Registers& regs,
                                 const StackView& stack, std::optional<uint64_t> cfa);

enum class RuleKind : uint8_t {
  kOffset,         // saved at CFA + value
  kValOffset,      // is CFA + value
  kRegister,       // is the value of register `value`
  kExpression,     // saved at the address that expression `value` gives
  kValExpression,  // is what expression `value` gives
  kUndefined,
};

struct RegisterRule {
  uint8_t reg = 0;
  RuleKind kind = RuleKind::kUndefined;
  int32_t value = 0;
};

// Registers in `same_mask` keep their value; those in the table's rules [first, first + count) are
// restored by them; all others are lost. The stack pointer is the CFA unless a rule says otherwise.
struct FrameRule {
  uint64_t same_mask = 0;
  int32_t cfa_value = 0;  // offset, or index of an expression
  uint32_t first = 0;
  uint8_t count = 0;
  uint8_t cfa_reg = 0;
  uint8_t ra_reg = 0;
  bool cfa_is_expression = false;
  bool is_signal_frame = false;
  bool ra_undefined = false;  // this is the outermost frame
  bool present = false;       // false: no CFI here
};

}  // namespace gpuprof::unwind

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "daemon/unwind/cfi_table.h"
#include "daemon/unwind/frame_rule.h"

namespace gpuprof::fuzz {

// The rule at an address, and what its expressions give on a small stack.
inline unwind::FrameRule ask_rule(unwind::CfiTable& table, uint64_t address) {
  const uint8_t bytes[256] = {};
  const unwind::StackView stack{0x7000, bytes};
  unwind::Registers registers;
  for (unsigned reg = 0; reg < 17; ++reg) registers.set(reg, 0x7000 + 8 * reg);
  const unwind::FrameRule rule = table.rule(address);
  if (!rule.present) return rule;
  if (rule.cfa_is_expression) {
    (void)unwind::evaluate(table.expression(rule.cfa_value), registers, stack, {});
  }
  for (const unwind::RegisterRule& each : table.registers(rule)) {
    if (each.kind == unwind::RuleKind::kExpression ||
        each.kind == unwind::RuleKind::kValExpression) {
      (void)unwind::evaluate(table.expression(each.value), registers, stack, 0x7010);
    }
  }
  return rule;
}

}  // namespace gpuprof::fuzz

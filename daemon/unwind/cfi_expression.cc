// SPDX-License-Identifier: Apache-2.0
#include "daemon/unwind/cfi_expression.h"

#include <dwarf.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>

namespace gpuprof::unwind {
namespace {

bool is_branch(uint8_t atom) { return atom == DW_OP_skip || atom == DW_OP_bra; }

bool has_no_operand(uint8_t atom) {
  return (atom >= DW_OP_lit0 && atom <= DW_OP_reg31) || atom == DW_OP_deref ||
         (atom >= DW_OP_dup && atom <= DW_OP_over) ||
         (atom >= DW_OP_swap && atom <= DW_OP_plus) ||  // swap rot xderef abs ... or plus
         (atom >= DW_OP_shl && atom <= DW_OP_xor) || (atom >= DW_OP_eq && atom <= DW_OP_ne) ||
         atom == DW_OP_nop || atom == DW_OP_call_frame_cfa || atom == DW_OP_stack_value;
}

std::optional<int64_t> fixed_operand(uint8_t atom, CfiCursor& at) {
  switch (atom) {
    case DW_OP_const1u:
    case DW_OP_pick:
    case DW_OP_deref_size:
      return at.fixed<uint8_t>();
    case DW_OP_const1s:
      return at.fixed<int8_t>();
    case DW_OP_const2u:
      return at.fixed<uint16_t>();
    case DW_OP_const2s:
    case DW_OP_skip:
    case DW_OP_bra:
      return at.fixed<int16_t>();
    case DW_OP_const4u:
      return at.fixed<uint32_t>();
    case DW_OP_const4s:
      return at.fixed<int32_t>();
    case DW_OP_addr:
    case DW_OP_const8u:
    case DW_OP_const8s:
      return at.fixed<int64_t>();
    default:
      return std::nullopt;
  }
}

bool decode(CfiCursor& at, ExprOp& op) {
  op.atom = at.fixed<uint8_t>();
  if (has_no_operand(op.atom)) return true;
  if (const auto fixed = fixed_operand(op.atom, at)) {
    op.a = *fixed;
    return true;
  }
  if (op.atom >= DW_OP_breg0 && op.atom <= DW_OP_breg31) {
    op.a = at.sleb();
    return true;
  }
  switch (op.atom) {
    case DW_OP_constu:
    case DW_OP_plus_uconst:
    case DW_OP_regx:
      op.a = static_cast<int64_t>(at.uleb());
      return true;
    case DW_OP_consts:
      op.a = at.sleb();
      return true;
    case DW_OP_bregx:
      op.a = static_cast<int64_t>(at.uleb());
      op.b = at.sleb();
      return true;
    default:
      return false;
  }
}

// `starts` are the offsets of the operations, and of the end behind them.
bool resolve_branches(std::span<ExprOp> ops, std::span<const uint64_t> starts, size_t first) {
  for (size_t i = 0; i < ops.size(); ++i) {
    if (!is_branch(ops[i].atom)) continue;
    const uint64_t target = starts[i + 1] + static_cast<uint64_t>(ops[i].a);
    const auto found = std::lower_bound(starts.begin(), starts.end(), target);
    if (found == starts.end() || *found != target) return false;
    ops[i].a = static_cast<int64_t>(first + static_cast<size_t>(found - starts.begin()));
  }
  return true;
}

}  // namespace

bool decode_expression(const CfiSection& section, uint64_t block, std::vector<ExprOp>& ops) {
  CfiCursor length(section.bytes, block, section.bytes.size());
  const uint64_t size = length.uleb();
  const uint64_t begin = length.offset();
  length.skip(size);
  if (length.failed()) return false;
  CfiCursor at(section.bytes, begin, begin + size);
  std::array<uint64_t, kMaxExprOps + 1> starts;
  const size_t first = ops.size();
  size_t count = 0;
  while (!at.done()) {
    if (count == kMaxExprOps) return false;
    starts[count++] = at.offset();
    if (!decode(at, ops.emplace_back()) || at.failed()) return false;
  }
  starts[count] = at.offset();
  return resolve_branches(std::span(ops).subspan(first), std::span(starts).first(count + 1), first);
}

}  // namespace gpuprof::unwind

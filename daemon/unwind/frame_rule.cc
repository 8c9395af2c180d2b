// SPDX-License-Identifier: Apache-2.0
#include "daemon/unwind/frame_rule.h"

#include <dwarf.h>

#include <cstring>

namespace gpuprof::unwind {
namespace {

constexpr int kExprDepth = 32;

// The operand stack. A failed pop poisons it, so that operations need no checks of their own.
class Operands {
 public:
  void push(uint64_t v) {
    if (depth_ == kExprDepth) {
      ok_ = false;
    } else {
      values_[depth_++] = v;
    }
  }
  uint64_t pop() {
    if (depth_ == 0) {
      ok_ = false;
      return 0;
    }
    return values_[--depth_];
  }
  void pick(uint64_t index) {
    if (index >= static_cast<uint64_t>(depth_)) {
      ok_ = false;
    } else {
      push(values_[depth_ - 1 - static_cast<int>(index)]);
    }
  }
  void fail() { ok_ = false; }
  [[nodiscard]] bool ok() const { return ok_; }

 private:
  uint64_t values_[kExprDepth] = {};
  int depth_ = 0;
  bool ok_ = true;
};

uint64_t shift(uint64_t value, uint64_t by, uint8_t atom) {
  if (by >= 64) return atom == DW_OP_shra && static_cast<int64_t>(value) < 0 ? ~uint64_t{0} : 0;
  if (atom == DW_OP_shl) return value << by;
  if (atom == DW_OP_shr) return value >> by;
  return static_cast<uint64_t>(static_cast<int64_t>(value) >> by);
}

// False if `atom` is no operation of two operands.
bool binary(uint8_t atom, Operands& st) {
  switch (atom) {
    case DW_OP_and:
    case DW_OP_or:
    case DW_OP_xor:
    case DW_OP_plus:
    case DW_OP_minus:
    case DW_OP_mul:
    case DW_OP_shl:
    case DW_OP_shr:
    case DW_OP_shra:
    case DW_OP_eq:
    case DW_OP_ne:
    case DW_OP_lt:
    case DW_OP_le:
    case DW_OP_gt:
    case DW_OP_ge:
      break;
    default:
      return false;
  }
  const uint64_t right = st.pop();
  const uint64_t left = st.pop();
  const auto sl = static_cast<int64_t>(left);
  const auto sr = static_cast<int64_t>(right);
  switch (atom) {
    case DW_OP_and:
      st.push(left & right);
      break;
    case DW_OP_or:
      st.push(left | right);
      break;
    case DW_OP_xor:
      st.push(left ^ right);
      break;
    case DW_OP_plus:
      st.push(left + right);
      break;
    case DW_OP_minus:
      st.push(left - right);
      break;
    case DW_OP_mul:
      st.push(left * right);
      break;
    case DW_OP_eq:
      st.push(left == right);
      break;
    case DW_OP_ne:
      st.push(left != right);
      break;
    case DW_OP_lt:
      st.push(sl < sr);
      break;
    case DW_OP_le:
      st.push(sl <= sr);
      break;
    case DW_OP_gt:
      st.push(sl > sr);
      break;
    case DW_OP_ge:
      st.push(sl >= sr);
      break;
    default:
      st.push(shift(left, right, atom));
      break;
  }
  return true;
}

bool literal(const ExprOp& op, Operands& st) {
  if (op.atom >= DW_OP_lit0 && op.atom <= DW_OP_lit31) {
    st.push(op.atom - DW_OP_lit0);
    return true;
  }
  switch (op.atom) {
    case DW_OP_addr:
    case DW_OP_const1u:
    case DW_OP_const1s:
    case DW_OP_const2u:
    case DW_OP_const2s:
    case DW_OP_const4u:
    case DW_OP_const4s:
    case DW_OP_const8u:
    case DW_OP_const8s:
    case DW_OP_constu:
    case DW_OP_consts:
      st.push(static_cast<uint64_t>(op.a));
      return true;
    default:
      return false;
  }
}

bool register_based(const ExprOp& op, const Registers& regs, Operands& st) {
  uint64_t reg = 0;
  int64_t offset = 0;
  if (op.atom >= DW_OP_breg0 && op.atom <= DW_OP_breg31) {
    reg = op.atom - DW_OP_breg0;
    offset = op.a;
  } else if (op.atom == DW_OP_bregx) {
    reg = static_cast<uint64_t>(op.a);
    offset = op.b;
  } else {
    return false;
  }
  if (reg >= kMaxRegisters || !regs.has(static_cast<unsigned>(reg))) {
    st.fail();
  } else {
    st.push(regs.value[reg] + static_cast<uint64_t>(offset));
  }
  return true;
}

// Stack shuffling and memory. False if the operation is unknown.
bool other(const ExprOp& op, const StackView& stack, std::optional<uint64_t> cfa, Operands& st) {
  switch (op.atom) {
    case DW_OP_nop:
      return true;
    case DW_OP_dup:
      st.pick(0);
      return true;
    case DW_OP_over:
      st.pick(1);
      return true;
    case DW_OP_pick:
      st.pick(static_cast<uint64_t>(op.a));
      return true;
    case DW_OP_drop:
      st.pop();
      return true;
    case DW_OP_neg:
      st.push(-st.pop());
      return true;
    case DW_OP_not:
      st.push(~st.pop());
      return true;
    case DW_OP_plus_uconst:
      st.push(st.pop() + static_cast<uint64_t>(op.a));
      return true;
    case DW_OP_abs: {
      const uint64_t v = st.pop();
      st.push(static_cast<int64_t>(v) < 0 ? -v : v);
      return true;
    }
    case DW_OP_swap: {
      const uint64_t top = st.pop();
      const uint64_t below = st.pop();
      st.push(top);
      st.push(below);
      return true;
    }
    case DW_OP_rot: {
      const uint64_t first = st.pop();
      const uint64_t second = st.pop();
      const uint64_t third = st.pop();
      st.push(first);
      st.push(third);
      st.push(second);
      return true;
    }
    case DW_OP_call_frame_cfa:
      if (cfa)
        st.push(*cfa);
      else
        st.fail();
      return true;
    case DW_OP_deref:
    case DW_OP_deref_size: {
      const unsigned size = op.atom == DW_OP_deref ? 8 : static_cast<unsigned>(op.a & 0xff);
      const auto v = stack.read(st.pop(), size);
      if (v)
        st.push(*v);
      else
        st.fail();
      return true;
    }
    default:
      return false;
  }
}

}  // namespace

std::optional<uint64_t> StackView::read(uint64_t at, unsigned size) const {
  if (size == 0 || size > 8 || bytes.size() < size || at < address ||
      at - address > bytes.size() - size) {
    return std::nullopt;
  }
  uint64_t v = 0;  // both supported architectures are little-endian
  std::memcpy(&v, bytes.data() + (at - address), size);
  return v;
}

std::optional<uint64_t> evaluate(std::span<const ExprOp> ops, const Registers& regs,
                                 const StackView& stack, std::optional<uint64_t> cfa) {
  Operands st;
  size_t at = 0;
  for (int step = 0; at < ops.size(); ++step) {
    if (step == kMaxExprSteps || !st.ok()) return std::nullopt;
    const ExprOp& op = ops[at++];
    if (op.atom == DW_OP_stack_value && at == ops.size()) break;
    if (op.atom == DW_OP_skip || op.atom == DW_OP_bra) {
      if (op.atom == DW_OP_bra && st.pop() == 0) continue;
      if (op.a < 0 || static_cast<uint64_t>(op.a) > ops.size()) return std::nullopt;
      at = static_cast<size_t>(op.a);
      continue;
    }
    if (!literal(op, st) && !register_based(op, regs, st) && !binary(op.atom, st) &&
        !other(op, stack, cfa, st)) {
      return std::nullopt;
    }
  }
  const uint64_t result = st.pop();
  if (!st.ok()) return std::nullopt;
  return result;
}

}  // namespace gpuprof::unwind

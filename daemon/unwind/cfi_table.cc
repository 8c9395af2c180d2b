// SPDX-License-Identifier: Apache-2.0
#include "daemon/unwind/cfi_table.h"

#include <dwarf.h>

#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

namespace gpuprof::unwind {
namespace {

constexpr size_t kMaxExprOps = 128;

constexpr unsigned kRax = 0, kRbx = 3;

struct FreeFrame {
  void operator()(Dwarf_Frame* frame) const { std::free(frame); }
};

bool fits(int64_t v) {
  return v >= std::numeric_limits<int32_t>::min() && v <= std::numeric_limits<int32_t>::max();
}

unsigned register_count(Machine machine) { return machine == Machine::kX86_64 ? 17 : 32; }
unsigned stack_pointer(Machine machine) { return machine == Machine::kX86_64 ? 7 : 31; }

// The forms that dwarf_frame_register (elfutils/libdw.h) gives for the plain rules: CFA, CFA + n,
// the same as a value, and another register.
std::optional<RegisterRule> plain_rule(unsigned reg, const Dwarf_Op* ops, size_t count) {
  RegisterRule rule{static_cast<uint8_t>(reg), RuleKind::kOffset, 0};
  if (count == 1 &&
      (ops[0].atom == DW_OP_regx || (ops[0].atom >= DW_OP_reg0 && ops[0].atom <= DW_OP_reg31))) {
    const uint64_t from = ops[0].atom == DW_OP_regx ? ops[0].number : ops[0].atom - DW_OP_reg0;
    if (from >= kMaxRegisters) return std::nullopt;
    rule.kind = RuleKind::kRegister;
    rule.value = static_cast<int32_t>(from);
    return rule;
  }
  if (ops[0].atom != DW_OP_call_frame_cfa) return std::nullopt;
  size_t at = 1;
  if (at < count && ops[at].atom == DW_OP_plus_uconst) {
    const auto offset = static_cast<int64_t>(ops[at++].number);
    if (!fits(offset)) return std::nullopt;
    rule.value = static_cast<int32_t>(offset);
  }
  if (at < count && ops[at].atom == DW_OP_stack_value) {
    rule.kind = RuleKind::kValOffset;
    ++at;
  }
  if (at != count) return std::nullopt;
  return rule;
}

}  // namespace

CfiTable::CfiTable(Machine machine, Dwarf_CFI* eh_frame, std::function<Dwarf_CFI*()> debug_frame)
    : machine_(machine), eh_frame_(eh_frame), open_debug_frame_(std::move(debug_frame)) {}

size_t CfiTable::probe(uint64_t address) const {
  const size_t mask = slots_.size() - 1;
  size_t at = (address * 0x9e3779b97f4a7c15ull) >> 32 & mask;
  while (slots_[at].address != address && slots_[at].address != kEmpty) at = (at + 1) & mask;
  return at;
}

FrameRule CfiTable::rule(uint64_t address) {
  if (address == kEmpty) return {};
  if (slots_.empty()) slots_.resize(256);
  size_t at = probe(address);
  if (slots_[at].address == address) return slots_[at].rule;
  if (used_ >= kMaxRules) clear();
  if (used_ * 2 >= slots_.size()) grow();
  const FrameRule rule = compile(address);
  at = probe(address);
  slots_[at] = Slot{address, rule};
  ++used_;
  return rule;
}

void CfiTable::grow() {
  std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(slots_.size() * 2));
  for (const Slot& slot : old) {
    if (slot.address != kEmpty) slots_[probe(slot.address)] = slot;
  }
}

void CfiTable::clear() {
  slots_.assign(256, Slot{});
  used_ = 0;
  registers_.clear();
  expressions_.clear();
  ops_.clear();
}

std::span<const RegisterRule> CfiTable::registers(const FrameRule& rule) const {
  return std::span(registers_).subspan(rule.first, rule.count);
}

std::span<const ExprOp> CfiTable::expression(int32_t index) const {
  if (index < 0 || static_cast<size_t>(index) >= expressions_.size()) return {};
  const Expression& e = expressions_[static_cast<size_t>(index)];
  return std::span(ops_).subspan(e.first, e.count);
}

// libdw gives branches as byte distances; they become indices here. -1: unusable.
int32_t CfiTable::intern(const Dwarf_Op* ops, size_t count) {
  if (count == 0 || count > kMaxExprOps) return -1;
  const auto first = static_cast<uint32_t>(ops_.size());
  for (size_t i = 0; i < count; ++i) {
    ExprOp op{ops[i].atom, static_cast<int64_t>(ops[i].number),
              static_cast<int64_t>(ops[i].number2)};
    if (op.atom == DW_OP_bra || op.atom == DW_OP_skip) {
      const int64_t target = static_cast<int64_t>(ops[i].offset) + 3 + static_cast<int16_t>(op.a);
      op.a = static_cast<int64_t>(count);  // beyond the last operation: the end
      for (size_t k = count; k-- > 0;) {
        if (static_cast<int64_t>(ops[k].offset) >= target) op.a = static_cast<int64_t>(k);
      }
    }
    ops_.push_back(op);
  }
  expressions_.push_back({first, static_cast<uint32_t>(count)});
  return static_cast<int32_t>(expressions_.size() - 1);
}

bool CfiTable::compile_cfa(Dwarf_Frame* frame, FrameRule& rule) {
  Dwarf_Op* ops = nullptr;
  size_t count = 0;
  if (dwarf_frame_cfa(frame, &ops, &count) != 0 || count == 0) return false;
  if (count == 1) {
    int64_t offset = 0;
    uint64_t reg = kMaxRegisters;
    if (ops[0].atom == DW_OP_bregx) {
      reg = ops[0].number;
      offset = static_cast<int64_t>(ops[0].number2);
    } else if (ops[0].atom >= DW_OP_breg0 && ops[0].atom <= DW_OP_breg31) {
      reg = ops[0].atom - DW_OP_breg0;
      offset = static_cast<int64_t>(ops[0].number);
    }
    if (reg < kMaxRegisters && fits(offset)) {
      rule.cfa_reg = static_cast<uint8_t>(reg);
      rule.cfa_value = static_cast<int32_t>(offset);
      return true;
    }
  }
  rule.cfa_is_expression = true;
  rule.cfa_value = intern(ops, count);
  return rule.cfa_value >= 0;
}

bool CfiTable::compile_register(Dwarf_Frame* frame, unsigned reg, FrameRule& rule) {
  Dwarf_Op memory[3];
  Dwarf_Op* ops = nullptr;
  size_t count = 0;
  if (dwarf_frame_register(frame, static_cast<int>(reg), memory, &ops, &count) != 0) return false;
  if (count == 0) {
    // ops == nullptr says "same value", ops == memory says "undefined" (libdw.h). For a register
    // without a rule that is libdw's idea of the ABI, and its table for x86-64 names rax where rbx
    // is meant (elfutils 0.192, backends/x86_64_cfi.c): _dl_runtime_resolve, whose CFA is
    // rbx-based, could not be unwound from a callee that leaves rbx alone.
    const bool is_same =
        machine_ == Machine::kX86_64 && (reg == kRax || reg == kRbx) ? reg == kRbx : ops == nullptr;
    if (is_same) {
      rule.same_mask |= uint64_t{1} << reg;
    } else if (reg == rule.ra_reg) {
      rule.ra_undefined = true;
    }
    return true;
  }
  if (const auto plain = plain_rule(reg, ops, count)) {
    const bool is_default =
        reg == stack_pointer(machine_) && plain->kind == RuleKind::kValOffset && plain->value == 0;
    if (!is_default) {
      registers_.push_back(*plain);
      ++rule.count;
    }
    return true;
  }
  const bool is_value = ops[count - 1].atom == DW_OP_stack_value;
  const int32_t index = intern(ops, is_value ? count - 1 : count);
  if (index < 0) return false;
  registers_.push_back({static_cast<uint8_t>(reg),
                        is_value ? RuleKind::kValExpression : RuleKind::kExpression, index});
  ++rule.count;
  return true;
}

FrameRule CfiTable::compile(uint64_t address) {
  Dwarf_Frame* raw = nullptr;
  if (eh_frame_ == nullptr || dwarf_cfi_addrframe(eh_frame_, address, &raw) != 0) {
    raw = nullptr;
    if (open_debug_frame_) debug_frame_ = std::exchange(open_debug_frame_, nullptr)();
    if (debug_frame_ == nullptr || dwarf_cfi_addrframe(debug_frame_, address, &raw) != 0) return {};
  }
  const std::unique_ptr<Dwarf_Frame, FreeFrame> frame(raw);
  FrameRule rule;
  Dwarf_Addr start = 0;
  Dwarf_Addr end = 0;
  const int ra = dwarf_frame_info(frame.get(), &start, &end, &rule.is_signal_frame);
  const unsigned registers = register_count(machine_);
  if (ra < 0 || static_cast<unsigned>(ra) >= registers) return {};
  rule.ra_reg = static_cast<uint8_t>(ra);
  rule.first = static_cast<uint32_t>(registers_.size());
  if (!compile_cfa(frame.get(), rule)) {
    // The outermost frame may leave the CFA undefined too.
    rule.ra_undefined = false;
    if (!compile_register(frame.get(), rule.ra_reg, rule) || !rule.ra_undefined) return {};
    rule.present = true;
    return rule;
  }
  for (unsigned reg = 0; reg < registers; ++reg) {
    if (!compile_register(frame.get(), reg, rule)) return {};
  }
  rule.present = true;
  return rule;
}

}  // namespace gpuprof::unwind

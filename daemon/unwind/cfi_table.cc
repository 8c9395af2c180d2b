// SPDX-License-Identifier: Apache-2.0
#include "daemon/unwind/cfi_table.h"

#include <dwarf.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "daemon/unwind/cfi_expression.h"

namespace gpuprof::unwind {
namespace {

bool fits(int64_t v) {
  return v >= std::numeric_limits<int32_t>::min() && v <= std::numeric_limits<int32_t>::max();
}

unsigned stack_pointer(Machine machine) { return machine == Machine::kX86_64 ? 7 : 31; }

// The plain rules: CFA, CFA + n, the same as a value, and another register.
std::optional<RegisterRule> plain_rule(unsigned reg, std::span<const ExprOp> ops) {
  const size_t count = ops.size();
  RegisterRule rule{static_cast<uint8_t>(reg), RuleKind::kOffset, 0};
  if (count == 1 && ops[0].atom == DW_OP_regx) {
    const auto from = static_cast<uint64_t>(ops[0].a);
    if (from >= kMaxRegisters) return std::nullopt;
    rule.kind = RuleKind::kRegister;
    rule.value = static_cast<int32_t>(from);
    return rule;
  }
  if (ops[0].atom != DW_OP_call_frame_cfa) return std::nullopt;
  size_t at = 1;
  if (at < count && ops[at].atom == DW_OP_plus_uconst) {
    const int64_t offset = ops[at++].a;
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

CfiTable::CfiTable(Machine machine, std::optional<FdeFinder> eh_frame,
                   std::function<std::optional<FdeFinder>()> debug_frame,
                   std::function<void()> release)
    : machine_(machine),
      eh_frame_(std::move(eh_frame)),
      open_debug_frame_(std::move(debug_frame)),
      release_(std::move(release)) {}

size_t CfiTable::probe(uint64_t address) const {
  const size_t mask = slots_.size() - 1;
  size_t at = (address * 0x9e3779b97f4a7c15ull) >> 32 & mask;
  while (slots_[at].address != address && slots_[at].address != kEmpty) at = (at + 1) & mask;
  return at;
}

FrameRule CfiTable::rule(uint64_t address) {
  if (address == kEmpty) return {};
  if (slots_.empty()) slots_.resize(256);
  credit_ = std::min(credit_ + kCreditPerRule, kCredit);
  size_t at = probe(address);
  if (slots_[at].address == address) return slots_[at].rule;
  if (credit_ <= 0) return {};
  if (used_ >= kMaxRules || registers_.size() >= kMaxRegisterRules || ops_.size() >= kMaxOps) {
    clear();
  }
  if (used_ * 2 >= slots_.size()) grow();
  const FrameRule rule = compile(address);
  if (release_ && ++since_release_ == kRulesPerRelease) {
    since_release_ = 0;
    release_();
  }
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

// `count` of the loaded operations. -1: unusable.
int32_t CfiTable::intern(size_t count) {
  if (count == 0 || count > kMaxExprOps) return -1;
  const auto first = static_cast<uint32_t>(ops_.size());
  ops_.insert(ops_.end(), loaded_.begin(), loaded_.begin() + static_cast<ptrdiff_t>(count));
  expressions_.push_back({first, static_cast<uint32_t>(count)});
  return static_cast<int32_t>(expressions_.size() - 1);
}

bool CfiTable::compile_cfa(const Frame& frame, FrameRule& rule) {
  loaded_.clear();
  if (frame.row.cfa == CfaKind::kRegister) {
    loaded_.push_back({DW_OP_bregx, static_cast<int64_t>(frame.row.cfa_register),
                       static_cast<int64_t>(frame.row.cfa_value)});
  } else if (frame.row.cfa != CfaKind::kExpression ||
             !decode_expression(*frame.section, frame.row.cfa_value, loaded_)) {
    return false;
  }
  if (loaded_.size() == 1) {
    int64_t offset = 0;
    uint64_t reg = kMaxRegisters;
    const ExprOp& op = loaded_[0];
    if (op.atom == DW_OP_bregx) {
      reg = static_cast<uint64_t>(op.a);
      offset = op.b;
    } else if (op.atom >= DW_OP_breg0 && op.atom <= DW_OP_breg31) {
      reg = op.atom - DW_OP_breg0;
      offset = op.a;
    }
    if (reg < kMaxRegisters && fits(offset)) {
      rule.cfa_reg = static_cast<uint8_t>(reg);
      rule.cfa_value = static_cast<int32_t>(offset);
      return true;
    }
  }
  const int32_t index = intern(loaded_.size());
  if (index < 0) return false;
  rule.cfa_is_expression = true;
  rule.cfa_value = index;
  return true;
}

// The rule of a register as a location description: a value ends with DW_OP_stack_value.
bool CfiTable::load_operations(const CfiSection& section, const SavedRegister& saved) {
  loaded_.clear();
  if (saved.how == Saved::kRegister) {
    loaded_.push_back({DW_OP_regx, static_cast<int64_t>(saved.value), 0});
    return true;
  }
  loaded_.push_back({DW_OP_call_frame_cfa, 0, 0});
  if (saved.how == Saved::kExpression || saved.how == Saved::kValExpression) {
    if (!decode_expression(section, saved.value, loaded_)) return false;
  } else if (saved.value != 0) {
    loaded_.push_back({DW_OP_plus_uconst, static_cast<int64_t>(saved.value), 0});
  }
  if (saved.how == Saved::kValOffset || saved.how == Saved::kValExpression) {
    loaded_.push_back({DW_OP_stack_value, 0, 0});
  }
  return true;
}

bool CfiTable::compile_register(const Frame& frame, unsigned reg, FrameRule& rule) {
  const SavedRegister& saved = frame.row.registers[reg];
  if (saved.how == Saved::kUndefined) {
    if (reg == rule.ra_reg) rule.ra_undefined = true;
    return true;
  }
  if (saved.how == Saved::kSameValue) {
    rule.same_mask |= uint64_t{1} << reg;
    return true;
  }
  if (!load_operations(*frame.section, saved)) return false;
  if (const auto plain = plain_rule(reg, loaded_)) {
    const bool is_default =
        reg == stack_pointer(machine_) && plain->kind == RuleKind::kValOffset && plain->value == 0;
    if (!is_default) {
      registers_.push_back(*plain);
      ++rule.count;
    }
    return true;
  }
  const bool is_value = loaded_.back().atom == DW_OP_stack_value;
  const int32_t index = intern(is_value ? loaded_.size() - 1 : loaded_.size());
  if (index < 0) return false;
  registers_.push_back({static_cast<uint8_t>(reg),
                        is_value ? RuleKind::kValExpression : RuleKind::kExpression, index});
  ++rule.count;
  return true;
}

std::optional<CfiTable::Frame> CfiTable::frame_in(std::optional<FdeFinder>& finder,
                                                  uint64_t address) {
  if (!finder) return std::nullopt;
  const auto fde = finder->find(address);
  if (!fde) return std::nullopt;
  uint64_t cost = 0;
  auto row = row_at(finder->section(), *fde, machine_, address, cost);
  credit_ -= static_cast<int64_t>(cost);
  if (!row) return std::nullopt;
  return Frame{&finder->section(), *row, fde->cie.ra_register, fde->cie.is_signal_frame};
}

std::optional<CfiTable::Frame> CfiTable::frame_at(uint64_t address) {
  if (auto frame = frame_in(eh_frame_, address)) return frame;
  if (open_debug_frame_) debug_frame_ = std::exchange(open_debug_frame_, nullptr)();
  return frame_in(debug_frame_, address);
}

FrameRule CfiTable::compile(uint64_t address) {
  const auto frame = frame_at(address);
  if (!frame) return {};
  const unsigned registers = rule_registers(machine_);
  if (frame->ra_register >= registers) return {};
  FrameRule rule;
  rule.is_signal_frame = frame->is_signal_frame;
  rule.ra_reg = static_cast<uint8_t>(frame->ra_register);
  rule.first = static_cast<uint32_t>(registers_.size());
  if (!compile_cfa(*frame, rule)) {
    // The outermost frame may leave the CFA undefined too.
    rule.ra_undefined = false;
    if (!compile_register(*frame, rule.ra_reg, rule) || !rule.ra_undefined) return {};
    rule.present = true;
    return rule;
  }
  for (unsigned reg = 0; reg < registers; ++reg) {
    if (!compile_register(*frame, reg, rule)) return {};
  }
  rule.present = true;
  return rule;
}

}  // namespace gpuprof::unwind

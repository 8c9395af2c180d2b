// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/unwind/libdw_rules.h"

#include <dwarf.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <span>
#include <sstream>
#include <tuple>
#include <utility>

namespace gpuprof::unwind::test {
namespace {

constexpr unsigned kRax = 0, kRbx = 3;

bool fits(int64_t v) {
  return v >= std::numeric_limits<int32_t>::min() && v <= std::numeric_limits<int32_t>::max();
}

bool is_stack_pointer(Machine machine, unsigned reg) {
  return reg == (machine == Machine::kX86_64 ? 7u : 31u);
}

// libdw gives branches as byte distances; they become indices here.
std::vector<ExprOp> convert(std::span<const Dwarf_Op> ops) {
  std::vector<ExprOp> out;
  for (const Dwarf_Op& each : ops) {
    ExprOp op{each.atom, static_cast<int64_t>(each.number), static_cast<int64_t>(each.number2)};
    if (op.atom == DW_OP_bra || op.atom == DW_OP_skip) {
      const int64_t target = static_cast<int64_t>(each.offset) + 3 + static_cast<int16_t>(op.a);
      op.a = static_cast<int64_t>(ops.size());
      for (size_t k = ops.size(); k-- > 0;) {
        if (static_cast<int64_t>(ops[k].offset) >= target) op.a = static_cast<int64_t>(k);
      }
    }
    out.push_back(op);
  }
  return out;
}

// The forms that dwarf_frame_register (elfutils/libdw.h) gives for the plain rules: CFA, CFA + n,
// the same as a value, and another register.
std::optional<RegisterRule> plain_rule(unsigned reg, std::span<const Dwarf_Op> ops) {
  RegisterRule rule{static_cast<uint8_t>(reg), RuleKind::kOffset, 0};
  if (ops.size() == 1 && ops[0].atom == DW_OP_regx) {
    if (ops[0].number >= kMaxRegisters) return std::nullopt;
    rule.kind = RuleKind::kRegister;
    rule.value = static_cast<int32_t>(ops[0].number);
    return rule;
  }
  if (ops[0].atom != DW_OP_call_frame_cfa) return std::nullopt;
  size_t at = 1;
  if (at < ops.size() && ops[at].atom == DW_OP_plus_uconst) {
    const auto offset = static_cast<int64_t>(ops[at++].number);
    if (!fits(offset)) return std::nullopt;
    rule.value = static_cast<int32_t>(offset);
  }
  if (at < ops.size() && ops[at].atom == DW_OP_stack_value) {
    rule.kind = RuleKind::kValOffset;
    ++at;
  }
  if (at != ops.size()) return std::nullopt;
  return rule;
}

bool take_cfa(Dwarf_Frame* frame, PlainRule& out) {
  Dwarf_Op* ops = nullptr;
  size_t count = 0;
  if (dwarf_frame_cfa(frame, &ops, &count) != 0 || count == 0) return false;
  if (count == 1 && ops[0].atom == DW_OP_bregx && ops[0].number < kMaxRegisters &&
      fits(static_cast<int64_t>(ops[0].number2))) {
    out.rule.cfa_reg = static_cast<uint8_t>(ops[0].number);
    out.rule.cfa_value = static_cast<int32_t>(ops[0].number2);
    return true;
  }
  if (count == 1 && ops[0].atom >= DW_OP_breg0 && ops[0].atom <= DW_OP_breg31 &&
      fits(static_cast<int64_t>(ops[0].number))) {
    out.rule.cfa_reg = static_cast<uint8_t>(ops[0].atom - DW_OP_breg0);
    out.rule.cfa_value = static_cast<int32_t>(ops[0].number);
    return true;
  }
  out.rule.cfa_is_expression = true;
  out.cfa = convert({ops, count});
  return true;
}

bool take_register(Machine machine, Dwarf_Frame* frame, unsigned reg, PlainRule& out) {
  Dwarf_Op memory[3];
  Dwarf_Op* ops = nullptr;
  size_t count = 0;
  if (dwarf_frame_register(frame, static_cast<int>(reg), memory, &ops, &count) != 0) return false;
  if (count == 0) {
    // A null `ops` says "same value", else "undefined" (libdw.h). libdw's table of what the ABI
    // lets no callee change names rax where rbx is meant (elfutils 0.192, backends/x86_64_cfi.c).
    const bool is_swapped = machine == Machine::kX86_64 && (reg == kRax || reg == kRbx);
    if (is_swapped ? reg == kRbx : ops == nullptr) {
      out.rule.same_mask |= uint64_t{1} << reg;
    } else if (reg == out.rule.ra_reg) {
      out.rule.ra_undefined = true;
    }
    return true;
  }
  if (const auto plain = plain_rule(reg, {ops, count})) {
    const bool is_default =
        is_stack_pointer(machine, reg) && plain->value == 0 && plain->kind == RuleKind::kValOffset;
    if (!is_default) out.registers.push_back({*plain, {}});
    return true;
  }
  const bool is_value = ops[count - 1].atom == DW_OP_stack_value;
  const RuleKind kind = is_value ? RuleKind::kValExpression : RuleKind::kExpression;
  out.registers.push_back(
      {{static_cast<uint8_t>(reg), kind, 0}, convert({ops, is_value ? count - 1 : count})});
  return true;
}

PlainRule take_rule(Machine machine, Dwarf_Frame* frame, int ra) {
  const unsigned registers = machine == Machine::kX86_64 ? 17 : 32;
  PlainRule out;
  Dwarf_Addr start = 0;
  Dwarf_Addr end = 0;
  dwarf_frame_info(frame, &start, &end, &out.rule.is_signal_frame);
  out.rule.ra_reg = static_cast<uint8_t>(ra);
  if (ra < 0 || static_cast<unsigned>(ra) >= registers) return {};
  if (!take_cfa(frame, out)) {
    if (!take_register(machine, frame, out.rule.ra_reg, out) || !out.rule.ra_undefined) return {};
    out.rule.present = true;
    return out;
  }
  for (unsigned reg = 0; reg < registers; ++reg) {
    if (!take_register(machine, frame, reg, out)) return {};
  }
  out.rule.count = static_cast<uint8_t>(out.registers.size());
  out.rule.present = true;
  return out;
}

auto key(const FrameRule& r) {
  return std::tuple(r.same_mask, r.cfa_value, r.count, r.cfa_reg, r.ra_reg, r.cfa_is_expression,
                    r.is_signal_frame, r.ra_undefined, r.present);
}

bool equal(const std::vector<ExprOp>& a, const std::vector<ExprOp>& b) {
  return std::ranges::equal(a, b, [](const ExprOp& x, const ExprOp& y) {
    return x.atom == y.atom && x.a == y.a && x.b == y.b;
  });
}

void print(std::ostream& out, const std::vector<ExprOp>& ops) {
  for (const ExprOp& op : ops) out << " [" << int{op.atom} << ' ' << op.a << ' ' << op.b << ']';
}

}  // namespace

bool operator==(const PlainRule& a, const PlainRule& b) {
  return key(a.rule) == key(b.rule) && equal(a.cfa, b.cfa) &&
         std::ranges::equal(a.registers, b.registers, [](const auto& x, const auto& y) {
           return x.rule.reg == y.rule.reg && x.rule.kind == y.rule.kind &&
                  x.rule.value == y.rule.value && equal(x.ops, y.ops);
         });
}

std::string to_string(const PlainRule& rule) {
  std::ostringstream out;
  const FrameRule& r = rule.rule;
  out << std::hex << (r.present ? "" : "absent ") << "same " << r.same_mask << std::dec << " cfa r"
      << int{r.cfa_reg} << "+" << r.cfa_value << " ra r" << int{r.ra_reg}
      << (r.is_signal_frame ? " signal" : "") << (r.ra_undefined ? " outermost" : "");
  print(out, rule.cfa);
  for (const auto& each : rule.registers) {
    out << "; r" << int{each.rule.reg} << " kind " << static_cast<int>(each.rule.kind) << ' '
        << each.rule.value;
    print(out, each.ops);
  }
  return out.str();
}

PlainRule plain(CfiTable& table, uint64_t address) {
  PlainRule out;
  out.rule = table.rule(address);
  auto take = [&](int32_t index) {
    const auto ops = table.expression(index);
    return std::vector(ops.begin(), ops.end());
  };
  for (RegisterRule each : table.registers(out.rule)) {
    std::vector<ExprOp> ops;
    if (each.kind == RuleKind::kExpression || each.kind == RuleKind::kValExpression) {
      ops = take(std::exchange(each.value, 0));
    }
    out.registers.push_back({each, std::move(ops)});
  }
  if (out.rule.cfa_is_expression) out.cfa = take(std::exchange(out.rule.cfa_value, 0));
  return out;
}

LibdwRules::LibdwRules(Machine machine, Elf* elf)
    : machine_(machine),
      eh_frame_(dwarf_getcfi_elf(elf)),
      dwarf_(dwarf_begin_elf(elf, DWARF_C_READ, nullptr)),
      debug_frame_(dwarf_getcfi(dwarf_)) {}

LibdwRules::~LibdwRules() {
  dwarf_cfi_end(eh_frame_);
  dwarf_end(dwarf_);
}

std::optional<LibdwRules::Row> LibdwRules::row(uint64_t address) {
  Dwarf_Frame* frame = nullptr;
  if ((eh_frame_ == nullptr || dwarf_cfi_addrframe(eh_frame_, address, &frame) != 0) &&
      (debug_frame_ == nullptr || dwarf_cfi_addrframe(debug_frame_, address, &frame) != 0)) {
    return std::nullopt;
  }
  const std::unique_ptr<Dwarf_Frame, decltype(&std::free)> owned(frame, &std::free);
  Row out = {};
  const int ra = dwarf_frame_info(frame, &out.start, &out.end, nullptr);
  out.rule = take_rule(machine_, frame, ra);
  return out;
}

}  // namespace gpuprof::unwind::test

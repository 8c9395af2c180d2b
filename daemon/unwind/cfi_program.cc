// SPDX-License-Identifier: Apache-2.0
#include "daemon/unwind/cfi_program.h"

#include <dwarf.h>

#include <vector>

namespace gpuprof::unwind {
namespace {

constexpr uint8_t kPrimaryMask = 0xc0;  // the opcodes that carry an operand in their low 6 bits

// What holds before the CIE says anything: the registers that the ABI lets no callee change keep
// their value, everything else is lost (x86-64 psABI 3.2.1; AAPCS64 6.1.1).
CfiRow abi_row(Machine machine) {
  CfiRow row;
  auto keep = [&](unsigned first, unsigned last) {
    for (unsigned reg = first; reg <= last; ++reg) row.registers[reg].how = Saved::kSameValue;
  };
  if (machine == Machine::kX86_64) {
    keep(3, 3);                                // rbx
    keep(6, 6);                                // rbp
    row.registers[7].how = Saved::kValOffset;  // rsp is the CFA
    keep(12, 16);                              // r12 to r15; rip until a CIE says where it is
  } else {
    keep(19, 30);
  }
  return row;
}

// One run over a CIE's or an FDE's instructions.
class Execution {
 public:
  Execution(const CfiSection& section, const Cie& cie, Machine machine, CfiRow& row)
      : section_(section), cie_(cie), machine_(machine), row_(row) {}

  // Into an FDE's program: rules to restore, where it starts, what is looked for.
  void begin_function(const CfiRow& initial, uint64_t start, uint64_t address) {
    initial_ = &initial;
    location_ = start;
    wanted_ = address;
  }

  bool run(const CfiRange& program) {
    CfiCursor at(section_.bytes, program.begin, program.end);
    bool is_valid = true;
    while (is_valid && !at.done() && !found_) is_valid = step(at) && !at.failed();
    cost_ += at.offset() - program.begin;
    return is_valid;
  }
  [[nodiscard]] uint64_t cost() const { return cost_; }

 private:
  bool step(CfiCursor& at) {
    const auto opcode = at.fixed<uint8_t>();
    const uint64_t operand = opcode & ~kPrimaryMask;
    switch (opcode & kPrimaryMask) {
      case DW_CFA_advance_loc:
        return advance(operand);
      case DW_CFA_offset:
        set(operand, Saved::kOffset, scaled(at.uleb()));
        return true;
      case DW_CFA_restore:
        return restore(operand);
      default:
        return location(opcode, at) || cfa(opcode, at) || saved(opcode, at) || state(opcode, at);
    }
  }

  // Each of the following is false for an opcode that is not its own, too: `step` tries the next.

  bool location(uint8_t opcode, CfiCursor& at) {
    switch (opcode) {
      case DW_CFA_advance_loc1:
        return advance(at.fixed<uint8_t>());
      case DW_CFA_advance_loc2:
        return advance(at.fixed<uint16_t>());
      case DW_CFA_advance_loc4:
        return advance(at.fixed<uint32_t>());
      case DW_CFA_MIPS_advance_loc8:
        return advance(at.fixed<uint64_t>());
      case DW_CFA_set_loc: {
        const auto target = read_pointer(at, cie_.pointer_encoding, section_.address);
        return target && move_to(*target);
      }
      default:
        return false;
    }
  }

  bool cfa(uint8_t opcode, CfiCursor& at) {
    switch (opcode) {
      case DW_CFA_def_cfa:
        row_.cfa_register = at.uleb();
        row_.cfa_value = at.uleb();
        row_.cfa = CfaKind::kRegister;
        return true;
      case DW_CFA_def_cfa_sf:
        row_.cfa_register = at.uleb();
        row_.cfa_value = scaled(static_cast<uint64_t>(at.sleb()));
        row_.cfa = CfaKind::kRegister;
        return true;
      case DW_CFA_def_cfa_register:
        row_.cfa_register = at.uleb();
        break;
      case DW_CFA_def_cfa_offset:
        row_.cfa_value = at.uleb();
        break;
      case DW_CFA_def_cfa_offset_sf:
        row_.cfa_value = scaled(static_cast<uint64_t>(at.sleb()));
        break;
      case DW_CFA_def_cfa_expression:
        row_.cfa = CfaKind::kExpression;
        row_.cfa_value = block(at);
        return true;
      default:
        return false;
    }
    // Half a rule completes one of a register and an offset only.
    if (row_.cfa != CfaKind::kRegister) row_.cfa = CfaKind::kInvalid;
    return true;
  }

  bool saved(uint8_t opcode, CfiCursor& at) {
    Saved how = Saved::kUndefined;
    switch (opcode) {
      case DW_CFA_undefined:
        break;
      case DW_CFA_same_value:
        how = Saved::kSameValue;
        break;
      case DW_CFA_offset_extended:
      case DW_CFA_offset_extended_sf:
      case DW_CFA_GNU_negative_offset_extended:
        how = Saved::kOffset;
        break;
      case DW_CFA_val_offset:
      case DW_CFA_val_offset_sf:
        how = Saved::kValOffset;
        break;
      case DW_CFA_register:
        how = Saved::kRegister;
        break;
      case DW_CFA_expression:
        how = Saved::kExpression;
        break;
      case DW_CFA_val_expression:
        how = Saved::kValExpression;
        break;
      default:
        return false;
    }
    const uint64_t reg = at.uleb();
    set(reg, how, saved_value(opcode, how, at));
    return true;
  }

  uint64_t saved_value(uint8_t opcode, Saved how, CfiCursor& at) {
    switch (how) {
      case Saved::kUndefined:
      case Saved::kSameValue:
        return 0;
      case Saved::kRegister:
        return at.uleb();
      case Saved::kExpression:
      case Saved::kValExpression:
        return block(at);
      case Saved::kOffset:
      case Saved::kValOffset:
        break;
    }
    if (opcode == DW_CFA_offset_extended_sf || opcode == DW_CFA_val_offset_sf) {
      return scaled(static_cast<uint64_t>(at.sleb()));
    }
    const uint64_t factored = scaled(at.uleb());
    return opcode == DW_CFA_GNU_negative_offset_extended ? -factored : factored;
  }

  bool state(uint8_t opcode, CfiCursor& at) {
    switch (opcode) {
      case DW_CFA_nop:
        return true;
      case DW_CFA_restore_extended:
        return restore(at.uleb());
      case DW_CFA_remember_state:
        if (remembered_.size() == kMaxRememberedRows) return false;
        remembered_.push_back(row_);
        cost_ += kRowCost;
        return true;
      case DW_CFA_restore_state:
        if (remembered_.empty()) return false;
        row_ = remembered_.back();
        remembered_.pop_back();
        cost_ += kRowCost;
        return true;
      case DW_CFA_GNU_args_size:
        (void)at.uleb();
        return true;
      case DW_CFA_GNU_window_save:  // aarch64's negate_ra_state: the unwinder strips every address
        return machine_ == Machine::kAarch64;
      default:
        return false;
    }
  }

  bool advance(uint64_t units) { return move_to(location_ + units * cie_.code_alignment); }

  // A CIE is about no address. The loop of run() ends with the row that `wanted_` lies in.
  bool move_to(uint64_t location) {
    location_ = location;
    found_ = location_ > wanted_;
    return initial_ != nullptr;
  }

  bool restore(uint64_t reg) {
    if (initial_ == nullptr) return false;
    if (reg < row_.registers.size()) row_.registers[reg] = initial_->registers[reg];
    return true;
  }

  void set(uint64_t reg, Saved how, uint64_t value) {
    if (reg < row_.registers.size()) row_.registers[reg] = {how, value};
  }

  [[nodiscard]] uint64_t scaled(uint64_t factored) const {
    return factored * static_cast<uint64_t>(cie_.data_alignment);
  }

  // The section offset of a block of bytes, which is skipped.
  static uint64_t block(CfiCursor& at) {
    const uint64_t offset = at.offset();
    at.skip(at.uleb());
    return offset;
  }

  const CfiSection& section_;
  const Cie& cie_;
  const Machine machine_;
  CfiRow& row_;
  const CfiRow* initial_ = nullptr;
  uint64_t location_ = 0;
  uint64_t wanted_ = 0;
  uint64_t cost_ = 0;
  bool found_ = false;
  std::vector<CfiRow> remembered_;
};

}  // namespace

std::optional<CfiRow> row_at(const CfiSection& section, const Fde& fde, Machine machine,
                             uint64_t address, uint64_t& cost) {
  const uint64_t cie_bytes = fde.cie.program.end - fde.cie.program.begin;
  const uint64_t fde_bytes = fde.program.end - fde.program.begin;
  if (cie_bytes > kMaxProgramBytes || fde_bytes > kMaxProgramBytes - cie_bytes) return std::nullopt;
  CfiRow row = abi_row(machine);
  Execution initial(section, fde.cie, machine, row);
  const bool is_initial = initial.run(fde.cie.program);
  cost += initial.cost();
  if (!is_initial) return std::nullopt;
  const CfiRow initial_row = row;
  Execution function(section, fde.cie, machine, row);
  function.begin_function(initial_row, fde.start, address);
  const bool is_found = function.run(fde.program);
  cost += function.cost();
  if (!is_found) return std::nullopt;
  return row;
}

}  // namespace gpuprof::unwind

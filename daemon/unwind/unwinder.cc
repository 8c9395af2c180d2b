// SPDX-License-Identifier: Apache-2.0
#include "daemon/unwind/unwinder.h"

#include <array>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

#include "daemon/unwind/address_space.h"
#include "daemon/unwind/elf_file.h"
#include "daemon/unwind/frame_rule.h"
#include "daemon/unwind/jit_step.h"

namespace gpuprof::unwind {
namespace {

constexpr unsigned kX86Sp = 7, kX86Pc = 16, kArmFp = 29, kArmSp = 31, kArmPc = 32;
constexpr size_t kMaxJitSteps = 4096;
constexpr int kMaxJitFrames = 256;

// The registers that one machine's unwinding turns on.
struct Abi {
  unsigned sp, pc, fp;
};
constexpr Abi abi_of(Machine machine) {
  return machine == Machine::kX86_64 ? Abi{kX86Sp, kX86Pc, 6} : Abi{kArmSp, kArmPc, kArmFp};
}

// Return addresses may be signed (PAC): user addresses have 48 bits, the rest is the signature. A
// kernel with 52-bit user addresses hands those out only to programs that ask for them.
uint64_t strip(Machine machine, uint64_t address) {
  return machine == Machine::kAarch64 ? address & ((uint64_t{1} << 48) - 1) : address;
}

}  // namespace

class Unwinder::Impl {
 public:
  Impl(std::shared_ptr<AddressSpace> space, Machine machine)
      : space_(std::move(space)), machine_(machine), abi_(abi_of(machine)) {}

  void unwind(const StackSample& sample, RawStack& out) {
    out.pcs.clear();
    out.limits.clear();
    by_frame_pointer_ = 0;
    out.end = walk(sample, out);
    out.by_frame_pointer = by_frame_pointer_;
    out.limits.resize(out.pcs.size(), UINT64_MAX);
  }

 private:
  // What one frame says: go on (the registers are the caller's now), or how the stack ended.
  using Step = StackEnd;
  static constexpr Step kNext = StackEnd::kInvalid;

  StackEnd walk(const StackSample& sample, RawStack& out) {
    std::vector<uint64_t>& pcs = out.pcs;
    if (sample.regs.size() < kMaxRegisters || sample.bytes.empty()) return StackEnd::kNoStack;
    stack_ = StackView{sample.stack_address, sample.bytes};
    stack_top_ = sample.stack_top;
    is_cut_ = (sample.flags & (GPUPROF_STACK_CUT | GPUPROF_STACK_PARTIAL)) != 0;
    const unsigned count = machine_ == Machine::kX86_64 ? 17 : 33;
    for (unsigned reg = 0; reg < count; ++reg) regs_.value[reg] = sample.regs[reg];
    regs_.valid = (uint64_t{1} << count) - 1;
    exact_ = true;  // the leaf, or the frame that a signal interrupted
    leaf_ = true;
    int jit_frames = 0;
    while (pcs.size() < kMaxFrames) {
      const uint64_t pc = regs_.value[abi_.pc];
      if (pc == 0) return StackEnd::kWhole;
      const uint64_t at = exact_ ? pc : pc - 1;
      const Mapping* mapping = space_->find(at);
      if (mapping == nullptr) {
        // A caller that lies nowhere is garbage and would be billed; the leaf is what fired.
        if (leaf_) pcs.push_back(at);
        return StackEnd::kNoModule;
      }
      pcs.push_back(at);
      const Step step =
          mapping->file ? step_by_cfi(*mapping, pcs.back()) : step_without_cfi(at, jit_frames);
      if (step != kNext) return step;
      out.limits.push_back(regs_.value[abi_.sp]);
      leaf_ = false;
    }
    return StackEnd::kTooDeep;
  }

  // `at` is the frame's recorded pc. A signal trampoline is entered at its first byte, not called,
  // so its pc is recorded as it is.
  Step step_by_cfi(const Mapping& mapping, uint64_t& at) {
    CfiTable& table = mapping.file->cfi();
    if (mapping.file->machine() != machine_) return StackEnd::kNoCfi;
    const FrameRule rule = table.rule(at - mapping.bias);
    if (!rule.present) {
      // Start-up code without CFI (musl's _start and clone): both ABIs mark the outermost frame by
      // a frame pointer of 0, and CFI restored it exactly on the way here.
      const bool outermost = !exact_ && regs_.has(abi_.fp) && regs_.value[abi_.fp] == 0;
      return outermost ? StackEnd::kWhole : step_by_frame_pointer();
    }
    if (rule.is_signal_frame) at = regs_.value[abi_.pc];
    if (rule.ra_undefined) return StackEnd::kWhole;
    const auto cfa = canonical_frame_address(table, rule);
    if (!cfa) return missing_;
    Registers next;
    next.valid = regs_.valid & rule.same_mask;
    for (unsigned reg = 0; reg < kMaxRegisters; ++reg) next.value[reg] = regs_.value[reg];
    next.set(abi_.sp, *cfa);
    StackEnd ra_failure = StackEnd::kBadFrame;
    for (const RegisterRule& r : table.registers(rule)) {
      const auto v = apply(table, r, *cfa);
      if (v) {
        next.set(r.reg, *v);
      } else if (is_popped(r, *cfa) && regs_.has(r.reg)) {
        next.set(r.reg, regs_.value[r.reg]);
      } else {
        next.valid &= ~(uint64_t{1} << r.reg);
        if (r.reg == rule.ra_reg) ra_failure = missing_;
      }
    }
    if (!next.has(rule.ra_reg)) return ra_failure;
    next.set(abi_.pc, strip(machine_, next.value[rule.ra_reg]));
    return advance(next, rule.is_signal_frame);
  }

  // In an epilogue GCC's CFI still names the slot that was just popped: it lies below the stack
  // pointer, outside the copy, and the register has its value back.
  [[nodiscard]] bool is_popped(const RegisterRule& r, uint64_t cfa) const {
    return r.kind == RuleKind::kOffset && exact_ &&
           cfa + static_cast<uint64_t>(int64_t{r.value}) < regs_.value[abi_.sp];
  }

  std::optional<uint64_t> canonical_frame_address(const CfiTable& table, const FrameRule& rule) {
    missing_ = StackEnd::kBadFrame;
    if (rule.cfa_is_expression && is_cut_) missing_ = StackEnd::kCut;  // it reads the stack
    if (!rule.cfa_is_expression) {
      if (!regs_.has(rule.cfa_reg)) return std::nullopt;
      return regs_.value[rule.cfa_reg] + static_cast<uint64_t>(int64_t{rule.cfa_value});
    }
    return evaluate(table.expression(rule.cfa_value), regs_, stack_, std::nullopt);
  }

  std::optional<uint64_t> apply(const CfiTable& table, const RegisterRule& r, uint64_t cfa) {
    const auto offset = static_cast<uint64_t>(int64_t{r.value});
    switch (r.kind) {
      case RuleKind::kOffset:
        return load(cfa + offset);
      case RuleKind::kValOffset:
        return cfa + offset;
      case RuleKind::kRegister:
        if (!regs_.has(static_cast<unsigned>(r.value))) return std::nullopt;
        return regs_.value[r.value];
      case RuleKind::kExpression: {
        const auto address = evaluate(table.expression(r.value), regs_, stack_, cfa);
        return address ? load(*address) : std::nullopt;
      }
      case RuleKind::kValExpression:
        return evaluate(table.expression(r.value), regs_, stack_, cfa);
      case RuleKind::kUndefined:
        break;
    }
    return std::nullopt;
  }

  // Notes in `missing_` why a word is not there: beyond the copy (more stack exists) or nowhere.
  std::optional<uint64_t> load(uint64_t address) {
    const auto v = stack_.read(address);
    if (!v) missing_ = is_beyond_copy(address) ? StackEnd::kCut : StackEnd::kBadFrame;
    return v;
  }

  [[nodiscard]] bool is_beyond_copy(uint64_t address) const {
    constexpr uint64_t kFarthest = uint64_t{1} << 30;
    if (address + 8 <= stack_.end() || address < stack_.address) return false;
    return stack_top_ != 0 ? address + 8 <= stack_top_ : address - stack_.end() < kFarthest;
  }

  // Takes `next` as the registers of the caller if the stack went up. Only the leaf of a machine
  // with a link register may keep its stack pointer.
  Step advance(const Registers& next, bool signal_frame) {
    const uint64_t before = regs_.value[abi_.sp];
    const uint64_t after = next.value[abi_.sp];
    const bool may_stand = machine_ == Machine::kAarch64 && exact_;
    if (signal_frame && (after < stack_.address || after > stack_.end())) {
      return StackEnd::kCut;  // the handler ran on an alternate stack
    }
    if (after < before || (after == before && !may_stand)) return StackEnd::kBadFrame;
    if (after > stack_.end()) return is_beyond_copy(after) ? StackEnd::kCut : StackEnd::kBadFrame;
    if ((after & 7) != 0) return StackEnd::kBadFrame;
    regs_ = next;
    exact_ = signal_frame;
    return kNext;
  }

  Step step_without_cfi(uint64_t at, int& jit_frames) {
    if (++jit_frames > kMaxJitFrames) return StackEnd::kNoCfi;
    if (!exact_) {
      const JitStep step = jit_step(at + 1);
      if (step.known) return step_by_epilogue(step);
    }
    return step_by_frame_pointer();
  }

  // What the code after the return address does to return, read once per pc.
  JitStep jit_step(uint64_t return_address) {
    if (const auto it = jit_steps_.find(return_address); it != jit_steps_.end()) return it->second;
    std::array<uint8_t, 32> code = {};
    const size_t n = space_->read_memory(return_address, code);
    const JitStep step = decode_epilogue(std::span(code).first(n));
    if (jit_steps_.size() >= kMaxJitSteps) jit_steps_.clear();
    jit_steps_.emplace(return_address, step);
    return step;
  }

  Step step_by_epilogue(const JitStep& step) {
    Registers next = regs_;
    const uint64_t sp = regs_.value[abi_.sp];
    for (unsigned i = 0; i < step.pop_count; ++i) {
      const auto v = stack_.read(sp + step.pops[i].offset);
      if (v) next.set(step.pops[i].reg, *v);
    }
    const auto ra = load(sp + step.return_offset);
    if (!ra) return missing_;
    if (space_->find(*ra - 1) == nullptr) return StackEnd::kNoCfi;
    next.set(abi_.pc, *ra);
    next.set(abi_.sp, sp + step.return_offset + 8);
    return advance(next, false);
  }

  // The frame record {caller's frame pointer, return address} that both ABIs share. Believed only
  // if it lies above the stack pointer and returns into mapped code.
  Step step_by_frame_pointer() {
    if (!regs_.has(abi_.fp)) return StackEnd::kNoCfi;
    const uint64_t fp = regs_.value[abi_.fp];
    if ((fp & 7) != 0 || fp < regs_.value[abi_.sp]) return StackEnd::kNoCfi;
    const auto caller_fp = stack_.read(fp);
    const auto ra = stack_.read(fp + 8);
    if (!caller_fp || !ra) return StackEnd::kNoCfi;
    const uint64_t pc = strip(machine_, *ra);
    if (pc < 4096 || space_->find(pc - 1) == nullptr) return StackEnd::kNoCfi;
    Registers next;
    next.set(abi_.fp, *caller_fp);
    next.set(abi_.sp, fp + 16);
    next.set(abi_.pc, pc);
    const Step step = advance(next, false);
    if (step == kNext) ++by_frame_pointer_;
    return step;
  }

  std::shared_ptr<AddressSpace> space_;
  const Machine machine_;
  const Abi abi_;
  Registers regs_;
  StackView stack_;
  uint64_t stack_top_ = 0;
  uint32_t by_frame_pointer_ = 0;
  bool is_cut_ = false;
  bool exact_ = true;
  bool leaf_ = true;
  StackEnd missing_ = StackEnd::kBadFrame;
  std::unordered_map<uint64_t, JitStep> jit_steps_;
};

Unwinder::Unwinder(std::shared_ptr<AddressSpace> space, Machine machine)
    : impl_(std::make_unique<Impl>(std::move(space), machine)) {}
Unwinder::~Unwinder() = default;
Unwinder::Unwinder(Unwinder&&) noexcept = default;
Unwinder& Unwinder::operator=(Unwinder&&) noexcept = default;

RawStack Unwinder::unwind(const StackSample& sample) {
  RawStack out;
  impl_->unwind(sample, out);
  return out;
}

void Unwinder::unwind(const StackSample& sample, RawStack& out) { impl_->unwind(sample, out); }

}  // namespace gpuprof::unwind

// SPDX-License-Identifier: Apache-2.0
//
// CfiTable: the frame rules of one ELF file, compiled lazily per address.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "daemon/unwind/cfi_program.h"
#include "daemon/unwind/fde_finder.h"
#include "daemon/unwind/frame_rule.h"
#include "daemon/unwind/machine.h"

namespace gpuprof::unwind {

// Rules by ELF virtual address, in an open-addressing table of 40-byte slots. Compiling one costs
// 0.6 to 0.8 µs (4 µs in cuFFT, whose programs are the longest), a hit 9 to 20 ns. Whole tables
// would be wasteful: libLLVM has 949k rows [docs/hardware.md].
// The file is hostile (docs/adr/0015). Memory: at most kMaxRules and what they refer to, 17 MB,
// then it starts afresh. Time: a rule costs at most kMaxProgramBytes of instructions, and all
// together kCredit and kCreditPerRule for each question; beyond that a new address has no rule for
// now. That is 0.1 s at most, then 6 µs a frame; 20,000 random addresses of cuFFT stay below it.
class CfiTable {
 public:
  static constexpr size_t kMaxRules = 65536;
  static constexpr size_t kMaxRegisterRules = 512 << 10;  // in all; a rule of good files has 7
  static constexpr size_t kMaxOps = 256 << 10;            // of expressions
  static constexpr int64_t kCredit = 64 << 20;
  static constexpr int64_t kCreditPerRule = 4 << 10;

  // Rules after which the section's pages are given back.
  static constexpr size_t kRulesPerRelease = 128;

  // `debug_frame` is asked at most once, when eh_frame has no entry. `release`, if any, is called
  // after each kRulesPerRelease rules that were compiled.
  CfiTable(Machine machine, std::optional<FdeFinder> eh_frame,
           std::function<std::optional<FdeFinder>()> debug_frame,
           std::function<void()> release = nullptr);

  // The rule at an address; `present` is false if there is none. The spans below hold for it until
  // the next rule().
  FrameRule rule(uint64_t address);
  [[nodiscard]] std::span<const RegisterRule> registers(const FrameRule& rule) const;
  [[nodiscard]] std::span<const ExprOp> expression(int32_t index) const;
  [[nodiscard]] size_t size() const { return used_; }

 private:
  struct Slot {
    uint64_t address = kEmpty;
    FrameRule rule;
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};

  // A row and what its FDE says of all rows.
  struct Frame {
    const CfiSection* section;
    CfiRow row;
    uint64_t ra_register;
    bool is_signal_frame;
  };

  FrameRule compile(uint64_t address);
  std::optional<Frame> frame_at(uint64_t address);
  std::optional<Frame> frame_in(std::optional<FdeFinder>& finder, uint64_t address);
  bool compile_cfa(const Frame& frame, FrameRule& rule);
  bool compile_register(const Frame& frame, unsigned reg, FrameRule& rule);
  bool load_operations(const CfiSection& section, const SavedRegister& saved);
  int32_t intern(size_t count);
  void grow();
  void clear();
  [[nodiscard]] size_t probe(uint64_t address) const;

  Machine machine_;
  std::optional<FdeFinder> eh_frame_;
  std::optional<FdeFinder> debug_frame_;
  std::function<std::optional<FdeFinder>()> open_debug_frame_;
  std::function<void()> release_;
  size_t since_release_ = 0;
  int64_t credit_ = kCredit;
  std::vector<Slot> slots_;
  size_t used_ = 0;
  std::vector<RegisterRule> registers_;
  struct Expression {
    uint32_t first, count;
  };
  std::vector<Expression> expressions_;
  std::vector<ExprOp> ops_;
  std::vector<ExprOp> loaded_;  // of the rule that is being compiled
};

}  // namespace gpuprof::unwind

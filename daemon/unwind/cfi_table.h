// SPDX-License-Identifier: Apache-2.0
//
// CfiTable: the frame rules of one ELF file, compiled lazily per address.
#pragma once

#include <elfutils/libdw.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "daemon/unwind/frame_rule.h"

namespace gpuprof::unwind {

enum class Machine : uint8_t { kX86_64, kAarch64 };

// Rules by ELF virtual address, in an open-addressing table of 40-byte slots. Compiling one through
// libdw costs 0.5 to 5 µs, a hit 9 to 20 ns. Whole tables would be wasteful: libLLVM has 949k rows
// [docs/hardware.md]. Memory: at most kMaxRules per file (about 5 MB); then it starts afresh.
class CfiTable {
 public:
  static constexpr size_t kMaxRules = 65536;

  // `eh_frame` may be null; `debug_frame` is asked at most once, when eh_frame has no entry.
  CfiTable(Machine machine, Dwarf_CFI* eh_frame, std::function<Dwarf_CFI*()> debug_frame);

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

  FrameRule compile(uint64_t address);
  bool compile_cfa(Dwarf_Frame* frame, FrameRule& rule);
  bool compile_register(Dwarf_Frame* frame, unsigned reg, FrameRule& rule);
  int32_t intern(const Dwarf_Op* ops, size_t count);
  void grow();
  void clear();
  [[nodiscard]] size_t probe(uint64_t address) const;

  Machine machine_;
  Dwarf_CFI* eh_frame_;
  Dwarf_CFI* debug_frame_ = nullptr;
  std::function<Dwarf_CFI*()> open_debug_frame_;
  std::vector<Slot> slots_;
  size_t used_ = 0;
  std::vector<RegisterRule> registers_;
  struct Expression {
    uint32_t first, count;
  };
  std::vector<Expression> expressions_;
  std::vector<ExprOp> ops_;
};

}  // namespace gpuprof::unwind

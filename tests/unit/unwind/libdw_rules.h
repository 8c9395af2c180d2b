// SPDX-License-Identifier: Apache-2.0
//
// Frame rules as libdw has them: the reference that our reader of call frame information is
// compared with. Trusted files only.
#pragma once

#include <elfutils/libdw.h>
#include <libelf.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/unwind/cfi_table.h"

namespace gpuprof::unwind::test {

// A rule without indices into a table, to be compared and printed.
struct PlainRule {
  FrameRule rule;  // `first` 0, of an expression `cfa_value` 0
  struct Register {
    RegisterRule rule;  // of an expression `value` 0
    std::vector<ExprOp> ops;
  };
  std::vector<ExprOp> cfa;
  std::vector<Register> registers;
};

bool operator==(const PlainRule& a, const PlainRule& b);
std::string to_string(const PlainRule& rule);
PlainRule plain(CfiTable& table, uint64_t address);

class LibdwRules {
 public:
  LibdwRules(Machine machine, Elf* elf);
  ~LibdwRules();
  LibdwRules(const LibdwRules&) = delete;
  LibdwRules& operator=(const LibdwRules&) = delete;

  struct Row {
    uint64_t start, end;  // addresses that share the rule
    PlainRule rule;
  };
  std::optional<Row> row(uint64_t address);

 private:
  Machine machine_;
  Dwarf_CFI* eh_frame_ = nullptr;
  Dwarf* dwarf_ = nullptr;
  Dwarf_CFI* debug_frame_ = nullptr;
};

}  // namespace gpuprof::unwind::test

// SPDX-License-Identifier: Apache-2.0
//
// An executable file of a target: segments, call frame information, symbols, DWARF. Most of the
// parsing is elfutils', which is not instrumented here: what is found there is a crash.
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "daemon/symbolize/debug_info.h"
#include "daemon/symbolize/symbol_table.h"
#include "daemon/unwind/elf_file.h"
#include "daemon/unwind/frame_rule.h"

namespace {

using namespace gpuprof;

void ask_rules(unwind::ElfFile& file, uint64_t address) {
  const uint8_t bytes[256] = {};
  const unwind::StackView stack{0x7000, bytes};
  unwind::Registers registers;
  for (unsigned reg = 0; reg < 17; ++reg) registers.set(reg, 0x7000 + 8 * reg);
  const unwind::FrameRule rule = file.cfi().rule(address);
  if (!rule.present) return;
  if (rule.cfa_is_expression) {
    (void)unwind::evaluate(file.cfi().expression(rule.cfa_value), registers, stack, {});
  }
  for (const unwind::RegisterRule& each : file.cfi().registers(rule)) {
    if (each.kind == unwind::RuleKind::kExpression ||
        each.kind == unwind::RuleKind::kValExpression) {
      (void)unwind::evaluate(file.cfi().expression(each.value), registers, stack, 0x7010);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto file = unwind::ElfFile::from_memory({data, data + size});
  if (!file) return 0;
  const symbolize::SymbolTable symbols((*file)->elf());
  const auto debug =
      (*file)->is_debug_bounded() ? symbolize::DebugInfo::open((*file)->elf()) : nullptr;
  int questions = 64;
  for (const auto& segment : (*file)->segments()) {
    const uint64_t step = segment.memory_size / 24 + 1;
    for (uint64_t i = 0; i < 25 && questions > 0; ++i, --questions) {
      const uint64_t address = segment.address + i * step;
      ask_rules(**file, address);
      (void)symbols.find(address);
      if (debug != nullptr) (void)debug->find(address);
    }
  }
  return 0;
}

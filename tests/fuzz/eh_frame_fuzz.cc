// SPDX-License-Identifier: Apache-2.0
//
// Call frame information without an ELF file around it. The input is a machine, whether the section
// is .debug_frame, the size of .eh_frame_hdr in 16 bits, that header, and the section.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <vector>

#include "daemon/unwind/cfi_table.h"
#include "tests/fuzz/ask_rule.h"

namespace {

using namespace gpuprof::unwind;

constexpr uint64_t kHeaderAddress = 0x2000;
constexpr uint64_t kFramesAddress = 0x3000;
constexpr int kMaxRecords = 32;

struct Input {
  Machine machine;
  CfiSection section;
  std::optional<SearchTable> table;
};

std::optional<Input> parse(std::span<const uint8_t> bytes) {
  if (bytes.size() < 4) return std::nullopt;
  const size_t header_size = bytes[2] | size_t{bytes[3]} << 8;
  Input input;
  input.machine = (bytes[0] & 1) != 0 ? Machine::kAarch64 : Machine::kX86_64;
  const bool is_debug = (bytes[1] & 1) != 0;
  bytes = bytes.subspan(4);
  if (header_size > bytes.size()) return std::nullopt;
  input.section = {bytes.subspan(header_size), is_debug ? 0 : kFramesAddress, !is_debug};
  const auto header = read_eh_frame_header({bytes.first(header_size), kHeaderAddress, true});
  if (header) input.table = header->table;
  return input;
}

// The ends of the first functions' ranges, and what no function is about.
std::vector<uint64_t> addresses(const CfiSection& section) {
  std::vector<uint64_t> out = {0, 0x1000, ~uint64_t{0} - 1};
  uint64_t offset = 0;
  for (int i = 0; i < kMaxRecords; ++i) {
    const auto record = record_at(section, offset);
    if (!record) break;
    if (record->body.end <= offset) std::abort();
    if (const auto fde = fde_at(section, offset)) {
      const uint64_t middle = fde->start + (fde->end - fde->start) / 2;
      out.insert(out.end(), {fde->start - 1, fde->start, middle, fde->end - 1, fde->end});
    }
    offset = record->body.end;
  }
  return out;
}

bool equal(const FrameRule& a, const FrameRule& b) {
  return a.present == b.present && a.same_mask == b.same_mask && a.count == b.count &&
         a.first == b.first && a.cfa_value == b.cfa_value;
}

// What a rule refers to exists, and a branch leads into its expression or to its end.
void check(const CfiTable& table, const FrameRule& rule) {
  if (!rule.present) return;
  auto check_ops = [&](int32_t index) {
    const auto ops = table.expression(index);
    if (ops.empty()) std::abort();
    for (const ExprOp& op : ops) {
      constexpr uint8_t kBra = 0x28, kSkip = 0x2f;
      const bool is_branch = op.atom == kBra || op.atom == kSkip;
      if (is_branch && (op.a < 0 || static_cast<uint64_t>(op.a) > ops.size())) std::abort();
    }
  };
  if (rule.cfa_is_expression) check_ops(rule.cfa_value);
  for (const RegisterRule& each : table.registers(rule)) {
    const bool is_expression =
        each.kind == RuleKind::kExpression || each.kind == RuleKind::kValExpression;
    if (each.reg >= kMaxRuleRegisters) std::abort();
    if (is_expression) check_ops(each.value);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto input = parse({data, size});
  if (!input) return 0;
  CfiTable table(input->machine, FdeFinder(input->section, input->table),
                 [] { return std::optional<FdeFinder>(); });
  for (const uint64_t address : addresses(input->section)) {
    const FrameRule rule = gpuprof::fuzz::ask_rule(table, address);
    check(table, rule);
    if (rule.present && !equal(rule, table.rule(address))) std::abort();
  }
  return 0;
}

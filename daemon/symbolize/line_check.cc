// SPDX-License-Identifier: Apache-2.0
#include "daemon/symbolize/line_check.h"

#include <dwarf.h>

#include <algorithm>

#include "daemon/base/byte_reader.h"

namespace gpuprof::symbolize {
namespace {

// Of the opcodes from 1. libdw reads one LEB128 where it is 1, but DW_LNS_fixed_advance_pc's two
// bytes, and gives up where the header says otherwise.
constexpr uint8_t kOperands[] = {0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1};
constexpr uint8_t kKnownOpcodes = sizeof kOperands;

// One extended instruction. libdw reads the operands that it knows whatever length is said, so a
// length that does not fit them would have it read other instructions than are seen here.
bool passes_extended(ByteReader& program, uint8_t address_bytes) {
  const auto length = program.fixed<uint8_t>();
  ByteReader operands(program.take(length));
  const auto opcode = operands.fixed<uint8_t>();
  if (program.failed() || operands.failed()) return false;
  switch (opcode) {
    case DW_LNE_define_file:
      return false;
    case DW_LNE_end_sequence:
      break;
    case DW_LNE_set_address:
      operands.skip(address_bytes);
      break;
    case DW_LNE_NVIDIA_inlined_call:
      operands.uleb();
      operands.uleb();
      break;
    case DW_LNE_set_discriminator:
    case DW_LNE_NVIDIA_set_function_name:
      operands.uleb();
      break;
    default:
      return true;
  }
  return operands.done() && !operands.failed();
}

// Whether every instruction is one that libdw reads as it is read here, and none defines a file.
bool defines_no_file(ByteReader program, std::span<const std::byte> operand_counts,
                     uint8_t address_bytes) {
  while (!program.done()) {
    const auto opcode = program.fixed<uint8_t>();
    if (opcode > operand_counts.size()) continue;  // a special one
    if (opcode == 0) {
      if (!passes_extended(program, address_bytes)) return false;
    } else if (opcode == DW_LNS_fixed_advance_pc) {
      program.skip(2);
    } else {
      for (auto left = static_cast<uint8_t>(operand_counts[opcode - 1u]); left > 0; --left)
        program.uleb();
    }
    if (program.failed()) return false;
  }
  return true;
}

}  // namespace

bool may_read_lines(std::span<const std::byte> debug_line, uint64_t offset, const LineUnit& unit) {
  if (offset >= debug_line.size()) return false;
  ByteReader section(debug_line.subspan(offset));
  const auto length = section.fixed<uint32_t>();
  if (length > kMaxLineProgramBytes) return false;
  ByteReader reader(section.take(length));
  const auto version = reader.fixed<uint16_t>();
  if (version >= 5) reader.skip(2);  // sizes of an address and of a segment's selector
  ByteReader header(reader.take(reader.fixed<uint32_t>()));
  if (section.failed() || reader.failed()) return false;
  if (version >= 5 || unit.has_directory) return true;
  header.skip(version >= 4 ? 5 : 4);  // from the minimum length of an instruction to the line range
  const auto opcode_base = header.fixed<uint8_t>();
  if (opcode_base == 0) return false;
  const auto operand_counts = header.take(opcode_base - 1u);
  if (header.failed()) return false;
  const size_t known = std::min<size_t>(operand_counts.size(), kKnownOpcodes);
  if (!std::equal(kOperands, kOperands + known, operand_counts.begin(),
                  [](uint8_t ours, std::byte theirs) { return std::byte{ours} == theirs; })) {
    return false;
  }
  return defines_no_file(reader, operand_counts, unit.address_bytes);
}

}  // namespace gpuprof::symbolize

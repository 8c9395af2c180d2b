// SPDX-License-Identifier: Apache-2.0
#include "daemon/symbolize/line_check.h"

#include <dwarf.h>
#include <gtest/gtest.h>

#include <vector>

namespace gpuprof::symbolize {
namespace {

using Bytes = std::vector<uint8_t>;

constexpr uint8_t kFile[] = {'a', 0, 0, 0, 0};
const Bytes kDefineFile = {0,        6,        DW_LNE_define_file, kFile[0],
                           kFile[1], kFile[2], kFile[3],           kFile[4]};
const Bytes kStandardOperands = {0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1};

void put32(Bytes& out, size_t value) {
  for (int i = 0; i < 4; ++i) out.push_back(static_cast<uint8_t>(value >> (8 * i)));
}

Bytes operator+(Bytes a, const Bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// .debug_line with one unit that has no directories and files.
Bytes section(const Bytes& program, uint16_t version = 4,
              const Bytes& operands = kStandardOperands) {
  Bytes header = {1};
  if (version >= 4) header.push_back(1);
  header = header + Bytes{1, 0xfb, 14, static_cast<uint8_t>(operands.size() + 1)} + operands;
  header = header + Bytes{0, 0};
  Bytes body = {static_cast<uint8_t>(version), 0};
  if (version >= 5) body = body + Bytes{8, 0};
  put32(body, header.size());
  body = body + header + program;
  Bytes out;
  put32(out, body.size());
  return out + body;
}

bool may_read(const Bytes& bytes, bool has_directory = false, uint64_t offset = 0) {
  return may_read_lines(std::as_bytes(std::span(bytes)), offset, {has_directory, 8});
}

const Bytes kSetAddress = {0, 9, DW_LNE_set_address, 0, 1, 2, 3, 4, 5, 6, 7};
const Bytes kHarmless =
    kSetAddress +
    Bytes{DW_LNS_copy, DW_LNS_advance_pc, 0x81, 1, DW_LNS_advance_line, 0x7f, 200, 255} +
    Bytes{DW_LNS_fixed_advance_pc, 0, 3, DW_LNS_set_isa, 1, 0, 2, DW_LNE_set_discriminator, 3} +
    Bytes{0, 4, DW_LNE_lo_user, 0, 3, 0, 1, DW_LNE_end_sequence};

TEST(LineCheck, ProgramsThatDefineNoFileAreRead) {
  for (const uint16_t version : {2, 3, 4, 5}) EXPECT_TRUE(may_read(section(kHarmless, version)));
}

TEST(LineCheck, AFileThatIsDefinedNeedsADirectory) {
  const Bytes program = kHarmless + kDefineFile;
  for (const uint16_t version : {2, 3, 4}) {
    EXPECT_FALSE(may_read(section(program, version)));
    EXPECT_TRUE(may_read(section(program, version), true));
  }
  EXPECT_TRUE(may_read(section(program, 5))) << "the program's own directory";
}

// In each libdw would come upon a definition that lies inside an operand here, or the reverse.
TEST(LineCheck, LengthsThatLibdwDoesNotFollowAreRefused) {
  const Bytes hidden[] = {
      {0, 1, DW_LNE_set_address},  // takes eight bytes all the same
      {0, 5, DW_LNE_set_address, 1, 2, 3, 4},
      {0, 3, DW_LNE_end_sequence, 0, 0},  // takes none
      {0, 12, DW_LNE_set_discriminator, 1, 0, 6, 3, 'a', 0, 0, 0, 0, 0, 0},
      {0, 2, DW_LNE_NVIDIA_inlined_call, 1},
      {0, 3, DW_LNE_NVIDIA_set_function_name, 1, 1},
      {0, 0, DW_LNE_define_file},
      {0, 200, DW_LNE_lo_user},
      {0},
      {DW_LNS_advance_pc},
      {DW_LNS_fixed_advance_pc, 1},
      {DW_LNS_set_file, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0},
  };
  for (const Bytes& program : hidden) EXPECT_FALSE(may_read(section(program)));
}

TEST(LineCheck, OperandCountsDecideWhereInstructionsEnd) {
  // What lies in the operands of opcode 13 is no instruction.
  const Bytes fourteen = kStandardOperands + Bytes{3};
  EXPECT_TRUE(may_read(section({13, 0, 6, 3}, 4, fourteen)));
  EXPECT_FALSE(may_read(section(Bytes{13, 1, 1, 1} + kDefineFile, 4, fourteen)));
  // libdw gives up at an opcode that it knows with another count: no need to follow it.
  Bytes other = kStandardOperands;
  other[DW_LNS_copy - 1] = 1;
  EXPECT_FALSE(may_read(section({}, 4, other)));
  // With an opcode base of 4 these are special ones, without operands.
  EXPECT_TRUE(may_read(section({4, 5, 9, 12}, 4, {0, 1, 1})));
  EXPECT_FALSE(may_read(section(Bytes{9} + kDefineFile, 4, {0, 1, 1})));
}

TEST(LineCheck, AHeaderThatLeavesItsUnitIsRefused) {
  Bytes bytes = section(kHarmless);
  bytes[6] = static_cast<uint8_t>(bytes.size() - 10);  // the program is empty
  EXPECT_TRUE(may_read(bytes, true));
  ++bytes[6];
  EXPECT_FALSE(may_read(bytes, true));
  bytes[9] = 0x7f;
  EXPECT_FALSE(may_read(bytes, true));
}

TEST(LineCheck, UnitsThatAreCutLargeOrElsewhereAreRefused) {
  const Bytes bytes = section(kHarmless);
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(may_read(Bytes(bytes.begin(), bytes.begin() + static_cast<long>(size)), true));
  EXPECT_FALSE(may_read(bytes, true, bytes.size()));
  EXPECT_FALSE(may_read(bytes, true, UINT64_MAX));
  EXPECT_TRUE(may_read(bytes + bytes, true, bytes.size()));
  EXPECT_TRUE(may_read(section(Bytes(kMaxLineProgramBytes - 64, 200)), true));
  EXPECT_FALSE(may_read(section(Bytes(kMaxLineProgramBytes, 200)), true));
}

}  // namespace
}  // namespace gpuprof::symbolize

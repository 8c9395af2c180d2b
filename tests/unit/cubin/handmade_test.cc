// SPDX-License-Identifier: Apache-2.0
//
// What the format allows and no compiler writes, or writes rarely.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "daemon/cubin/image.h"
#include "tests/unit/cubin/cubin_writer.h"
#include "tests/unit/cubin/fixture.h"
#include "tests/unit/cubin/handmade.h"

namespace gpuprof::cubin {
namespace {

using test::chain_text;
using test::CubinWriter;
using test::Handmade;
using test::kKernelBytes;
using test::LineProgram;
using test::Outcome;
using test::parse_within_bounds;
using test::u32_bytes;

// Nothing says whose lines they are, and every function begins at 0.
TEST(LineTable, SequencesThatNoRelocationPlacesAreDropped) {
  CubinWriter writer;
  writer.kernel("k", kKernelBytes);
  LineProgram program;
  program.raw(std::string("\0\11\2\0\0\0\0\0\0\0\0", 11));
  program.row(0, 10);
  program.end_sequence(kKernelBytes);
  program.row(0, 20);  // without any address
  program.end_sequence(kKernelBytes);
  writer.unit(program, {"a.cu"});
  const Outcome outcome = parse_within_bounds(writer.finish());
  ASSERT_TRUE(outcome.image) << outcome.error;
  EXPECT_EQ(chain_text(outcome.image->resolve("k", 0)), "no-lineinfo: k");
}

TEST(LineTable, NamesThatStartInsideAnotherAreDropped) {
  for (const uint64_t offset : {1u, 5u, 6u, 100u}) {  // inside, the NUL, the end, beyond
    Handmade image;
    image.writer().string("first");
    image.program().row(0, 10);
    image.program().inlined_call(1, offset);
    image.program().row(0, 20);
    const Outcome outcome = image.end_sequence_and_parse();
    ASSERT_TRUE(outcome.image) << outcome.error;
    const Resolution resolution = outcome.image->resolve("k", 0);
    ASSERT_EQ(resolution.frames.size(), 2u);
    EXPECT_EQ(resolution.frames[0].mangled, "") << offset;
    EXPECT_EQ(resolution.frames[0].line, 20u);
    EXPECT_EQ(resolution.frames[1].mangled, "k");
  }
}

TEST(LineTable, LinesAreNotTakenFromBetweenSequences) {
  CubinWriter writer;
  const size_t kernel = writer.kernel("k", kKernelBytes);
  LineProgram program;
  program.set_address(kernel);
  program.row(0x10, 10);
  program.end_sequence(0x20);
  program.set_address(kernel);
  program.row(0x100, 20);
  program.end_sequence(0x200);
  writer.unit(program, {"a.cu"});
  const Outcome outcome = parse_within_bounds(writer.finish());
  ASSERT_TRUE(outcome.image) << outcome.error;
  const auto at = [&](uint64_t pc) { return chain_text(outcome.image->resolve("k", pc)); };
  EXPECT_EQ(at(0x0), "no-lineinfo: k");
  EXPECT_EQ(at(0x10), "resolved: k a.cu:10");
  EXPECT_EQ(at(0x1f), "resolved: k a.cu:10");
  EXPECT_EQ(at(0x20), "no-lineinfo: k");
  EXPECT_EQ(at(0x1f0), "resolved: k a.cu:20");
  EXPECT_EQ(at(0x200), "no-lineinfo: k");
}

TEST(LineTable, StoredValueCountsOnlyWithRel) {
  for (const bool rel : {false, true}) {
    CubinWriter writer;
    if (rel) writer.use_rel();
    const size_t kernel = writer.kernel("k", kKernelBytes);
    LineProgram program;
    program.raw(std::string("\0\11\2\x80\0\0\0\0\0\0\0", 11));
    program.row(0, 10);
    program.raw(std::string("\2\x80\1", 3));  // to 0x80 or 0x100
    program.raw(std::string("\0\1\1", 3));
    writer.unit(program, {"a.cu"});
    const uint64_t operand = 10 + 5 + 9 + 6 + 8 + 1 + 4 + 3;
    writer.relocation(operand, static_cast<uint32_t>(kernel));
    const Outcome outcome = parse_within_bounds(writer.finish());
    ASSERT_TRUE(outcome.image) << outcome.error;
    EXPECT_EQ(outcome.image->resolve("k", 0).status,
              rel ? SourceStatus::kNoLineInfo : SourceStatus::kResolved);
    EXPECT_EQ(outcome.image->resolve("k", 0x80).status,
              rel ? SourceStatus::kResolved : SourceStatus::kNoLineInfo);
  }
}

// One sequence over two functions: whose are the rows after the second address?
TEST(LineTable, SequencesOverTwoFunctionsAreDropped) {
  CubinWriter writer;
  LineProgram program;
  program.set_address(writer.kernel("k", kKernelBytes));
  program.row(0, 10);
  program.set_address(writer.kernel("l", kKernelBytes));
  program.row(0x10, 20);
  program.end_sequence(kKernelBytes);
  writer.unit(program, {"a.cu"});
  const Outcome outcome = parse_within_bounds(writer.finish());
  ASSERT_TRUE(outcome.image) << outcome.error;
  EXPECT_EQ(chain_text(outcome.image->resolve("k", 0x10)), "no-lineinfo: k");
  EXPECT_EQ(chain_text(outcome.image->resolve("l", 0x10)), "no-lineinfo: l");
}

TEST(LineTable, RowsOutOfOrderAreSorted) {
  Handmade image;
  image.program().row(0x100, 20);
  image.program().set_address(1);
  image.program().row(0x10, 10);
  image.program().row(0x200, 30);
  const Outcome outcome = image.end_sequence_and_parse();
  ASSERT_TRUE(outcome.image) << outcome.error;
  EXPECT_EQ(chain_text(outcome.image->resolve("k", 0x20)), "resolved: k a.cu:10");
  EXPECT_EQ(chain_text(outcome.image->resolve("k", 0x110)), "resolved: k a.cu:20");
  EXPECT_EQ(chain_text(outcome.image->resolve("k", 0x210)), "resolved: k a.cu:30");
}

// What nvcc does not use: version 4 (a field more), instructions of 16 units, the two opcodes that
// advance without an operand of their own unit, a standard opcode that nobody knows.
TEST(LineTable, TheRestOfTheStandardIsRead) {
  CubinWriter writer;
  const size_t kernel = writer.kernel("k", kKernelBytes);
  std::string header = std::string("\x10\1\1\xfb\x0e\x0e", 6);  // opcode base 14
  header += std::string("\0\1\1\1\1\0\0\0\1\0\0\1\2", 13);      // opcode 13 has 2 operands
  header += std::string("\0a.cu\0\0\0\0\0", 10);
  LineProgram program;
  program.set_address(kernel);
  program.raw(std::string("\3\x09\1", 3));          // 10 at 0
  program.raw(std::string("\x0d\x81\1\2", 4));      // opcode 13
  program.raw(std::string("\x08\3\1\1", 4));        // 11 at (255 - 14) / 14 * 16 = 0x110
  program.raw(std::string("\x09\x10\0\3\1\1", 6));  // 12 at 0x120: fixed_advance_pc is in bytes
  program.raw(std::string("\2\2\3\1\1", 5));        // 13 at 0x140
  program.raw(std::string("\5\7\6\7\x0a\x0b\x0c\1\2\1\0\1\1", 13));  // no row; ends at 0x150
  writer.raw_unit(u32_bytes(6 + header.size() + program.bytes().size()) + std::string("\4\0", 2) +
                  u32_bytes(header.size()) + header + program.bytes());
  writer.relocation(10 + header.size() + program.operands()[0].offset,
                    static_cast<uint32_t>(kernel));
  const Outcome outcome = parse_within_bounds(writer.finish());
  ASSERT_TRUE(outcome.image) << outcome.error;
  const auto at = [&](uint64_t pc) { return chain_text(outcome.image->resolve("k", pc)); };
  EXPECT_EQ(at(0x10f), "resolved: k a.cu:10");
  EXPECT_EQ(at(0x110), "resolved: k a.cu:11");
  EXPECT_EQ(at(0x120), "resolved: k a.cu:12");
  EXPECT_EQ(at(0x13f), "resolved: k a.cu:12");
  EXPECT_EQ(at(0x140), "resolved: k a.cu:13");
  EXPECT_EQ(at(0x150), "no-lineinfo: k");
}

TEST(LineTable, RowsWithoutAFileOrLineAreNoSource) {
  for (const bool has_file : {false, true}) {
    Handmade image;
    if (!has_file) image.program().set_file(7);
    image.program().row(0, has_file ? 0 : 10);
    const Outcome outcome = image.end_sequence_and_parse();
    ASSERT_TRUE(outcome.image) << outcome.error;
    EXPECT_EQ(outcome.image->resolve("k", 0).status, SourceStatus::kNoLineInfo);
  }
}

TEST(Image, ADeviceFunctionAtTheKernelsStartIsInsideIt) {
  CubinWriter writer;
  const size_t text = writer.text("k", kKernelBytes);
  writer.symbol("$k$callee", text, 0, 0x80, false, true);
  writer.symbol("k", text, 0, kKernelBytes, true);
  const Outcome outcome = parse_within_bounds(writer.finish());
  ASSERT_TRUE(outcome.image) << outcome.error;
  EXPECT_EQ(chain_text(outcome.image->resolve("k", 0)), "no-lineinfo: callee < k");
  EXPECT_EQ(chain_text(outcome.image->resolve("k", 0x80)), "no-lineinfo: k");
}

TEST(Image, AliasesAnswerByTheNameThatWasAskedFor) {
  CubinWriter writer;
  const size_t text = writer.text("k", kKernelBytes);
  writer.symbol("k", text, 0, kKernelBytes, true);
  writer.symbol("other", text, 0, kKernelBytes, true);
  const Outcome outcome = parse_within_bounds(writer.finish());
  ASSERT_TRUE(outcome.image) << outcome.error;
  EXPECT_EQ(chain_text(outcome.image->resolve("k", 0)), "no-lineinfo: k");
  EXPECT_EQ(chain_text(outcome.image->resolve("other", 0)), "no-lineinfo: other");
}

TEST(Image, AKernelGoesBeforeALocalFunctionOfItsName) {
  CubinWriter writer;
  writer.symbol("k", writer.text("a", kKernelBytes), 0, 0x80, false, true);
  writer.kernel("k", kKernelBytes);
  const Outcome outcome = parse_within_bounds(writer.finish());
  ASSERT_TRUE(outcome.image) << outcome.error;
  const Function* const found = outcome.image->find("k");
  ASSERT_NE(found, nullptr);
  EXPECT_TRUE(found->is_kernel);
  EXPECT_EQ(outcome.image->resolve("k", 0x100).status, SourceStatus::kNoLineInfo);
}

TEST(LineTable, RelocationsMayAdd) {
  CubinWriter writer;
  const size_t kernel = writer.kernel("k", kKernelBytes);
  LineProgram program;
  program.raw(std::string("\0\11\2\0\0\0\0\0\0\0\0", 11));
  program.row(0, 10);
  program.end_sequence(0x10);
  writer.unit(program, {"a.cu"});
  writer.relocation(10 + 5 + 9 + 6 + 8 + 1 + 4 + 3, static_cast<uint32_t>(kernel), 0x200);
  const Outcome outcome = parse_within_bounds(writer.finish());
  ASSERT_TRUE(outcome.image) << outcome.error;
  EXPECT_EQ(chain_text(outcome.image->resolve("k", 0)), "no-lineinfo: k");
  EXPECT_EQ(chain_text(outcome.image->resolve("k", 0x200)), "resolved: k a.cu:10");
}

// A cubin has two sections for a kernel and more; a library's may have tens of thousands of
// kernels.
TEST(Image, MoreSectionsThanTheHeaderCanCount) {
  CubinWriter writer;
  LineProgram program;
  constexpr uint32_t kKernels = 66'000;
  for (uint32_t i = 0; i < kKernels; ++i) {
    program.set_address(writer.kernel("k" + std::to_string(i), 16));
    program.row(0, 100 + i);
    program.end_sequence(16);
  }
  writer.unit(program, {"a.cu"});
  const Outcome outcome = parse_within_bounds(writer.finish());
  ASSERT_TRUE(outcome.image) << outcome.error;
  EXPECT_EQ(chain_text(outcome.image->resolve("k65999", 0)), "resolved: k65999 a.cu:66099");
  EXPECT_EQ(chain_text(outcome.image->resolve("k65300", 0)), "resolved: k65300 a.cu:65400");
  EXPECT_EQ(chain_text(outcome.image->resolve("k1", 0)), "resolved: k1 a.cu:101");
}

// A kernel's own code after a device function inside it: the last row is the device function's.
TEST(Image, GapsAfterADeviceFunctionAreTheKernelsWithoutALine) {
  CubinWriter writer;
  const size_t text = writer.text("k", kKernelBytes);
  const size_t kernel = writer.symbol("k", text, 0, kKernelBytes, true);
  writer.symbol("$k$callee", text, 0x100, 0x80, false, true);
  LineProgram program;
  program.set_address(kernel);
  program.row(0, 10);
  program.row(0x100, 20);
  program.row(0x200, 11);
  program.end_sequence(kKernelBytes);
  writer.unit(program, {"a.cu"});
  const Outcome outcome = parse_within_bounds(writer.finish());
  ASSERT_TRUE(outcome.image) << outcome.error;
  const auto at = [&](uint64_t pc) { return chain_text(outcome.image->resolve("k", pc)); };
  EXPECT_EQ(at(0xf0), "resolved: k a.cu:10");
  EXPECT_EQ(at(0x100), "resolved: callee a.cu:20 < k");
  EXPECT_EQ(at(0x170), "resolved: callee a.cu:20 < k");
  EXPECT_EQ(at(0x180), "no-lineinfo: k");
  EXPECT_EQ(at(0x200), "resolved: k a.cu:11");
}

// Local functions of two files may have one name; which one a PC is in, it does not say.
TEST(Image, LocalFunctionsOfOneNameHaveNoLine) {
  CubinWriter writer;
  LineProgram program;
  for (const uint32_t line : {10u, 20u}) {
    const size_t text = writer.text("same" + std::to_string(line), kKernelBytes);
    program.set_address(writer.symbol("same", text, 0, kKernelBytes, false, true));
    program.row(0, line);
    program.end_sequence(kKernelBytes);
  }
  writer.unit(program, {"a.cu"});
  const Outcome outcome = parse_within_bounds(writer.finish());
  ASSERT_TRUE(outcome.image) << outcome.error;
  const Resolution unknown = outcome.image->resolve("same", 0);
  EXPECT_EQ(chain_text(unknown), "no-lineinfo: same");
  EXPECT_EQ(unknown.address, 0u) << "that of neither";
  EXPECT_EQ(chain_text(outcome.image->resolve("same", kKernelBytes)), "unmapped");
}

TEST(Image, TheKernelTellsWhichOfSeveralLocalFunctionsIsMeant) {
  CubinWriter writer;
  LineProgram program;
  for (const uint32_t number : {1u, 2u, 3u}) {
    const std::string kernel = "k" + std::to_string(number);
    const size_t text = writer.text(kernel, kKernelBytes);
    program.set_address(writer.symbol(kernel, text, 0, kKernelBytes, true));
    program.row(0, 10 * number);
    program.row(0x100, 10 * number + 1);
    program.end_sequence(kKernelBytes);
    if (number == 3) continue;
    writer.symbol("same", text, 0x100, number * 0x100, false, true);  // the second is longer
  }
  writer.unit(program, {"a.cu"});
  const Outcome outcome = parse_within_bounds(writer.finish());
  ASSERT_TRUE(outcome.image) << outcome.error;
  const auto at = [&](uint64_t pc, std::string_view kernel) {
    return chain_text(outcome.image->resolve("same", pc, kernel));
  };
  EXPECT_EQ(at(0, "k1"), "resolved: same a.cu:11 < k1");
  EXPECT_EQ(at(0, "k2"), "resolved: same a.cu:21 < k2");
  EXPECT_EQ(at(0x180, "k1"), "unmapped") << "beyond the end of the one in k1";
  EXPECT_EQ(at(0x180, "k2"), "resolved: same a.cu:21 < k2");
  EXPECT_EQ(at(0x180, ""), "no-lineinfo: same");
  EXPECT_EQ(at(0, "k3"), "no-lineinfo: same") << "has none";
  EXPECT_EQ(at(0, "same"), "no-lineinfo: same") << "no kernel";
  EXPECT_EQ(at(0, "nothing"), "no-lineinfo: same");
  EXPECT_NE(outcome.image->resolve("same", 0, "k1").address,
            outcome.image->resolve("same", 0, "k2").address);
}

TEST(Image, WhichFunctionsMayRunInAKernel) {
  CubinWriter writer;
  for (const std::string kernel : {"k1", "k2"}) {
    const size_t text = writer.text(kernel, kKernelBytes);
    writer.symbol(kernel, text, 0, kKernelBytes, true);
    writer.symbol("$" + kernel + "$callee", text, 0x100, 0x80, false, true);
    if (kernel == "k2") writer.symbol("alias2", text, 0, kKernelBytes, true);
  }
  writer.symbol("apart", writer.text("apart", 0x80), 0, 0x80, false);
  const Outcome outcome = parse_within_bounds(writer.finish());
  ASSERT_TRUE(outcome.image) << outcome.error;
  const Image& image = *outcome.image;
  EXPECT_TRUE(image.may_run_in("k1", "k1"));
  EXPECT_FALSE(image.may_run_in("k1", "k2"));
  EXPECT_TRUE(image.may_run_in("alias2", "k2"));
  EXPECT_TRUE(image.may_run_in("$k1$callee", "k1"));
  EXPECT_FALSE(image.may_run_in("$k1$callee", "k2"));
  EXPECT_TRUE(image.may_run_in("$k2$callee", "alias2"));
  EXPECT_TRUE(image.may_run_in("apart", "k1")) << "any kernel may call it";
  EXPECT_FALSE(image.may_run_in("k1", "apart"));
  EXPECT_FALSE(image.may_run_in("nothing", "k1"));
  EXPECT_FALSE(image.may_run_in("apart", "nothing"));
}

TEST(Image, AKernelsSecondNameIsAboveItsDeviceFunctions) {
  CubinWriter writer;
  const size_t text = writer.text("k", kKernelBytes);
  for (const char* name : {"k", "alias"}) writer.symbol(name, text, 0, kKernelBytes, true);
  writer.symbol("$k$callee", text, 0x100, 0x80, false, true);
  const Outcome outcome = parse_within_bounds(writer.finish());
  ASSERT_TRUE(outcome.image) << outcome.error;
  EXPECT_EQ(chain_text(outcome.image->resolve("k", 0x100)), "no-lineinfo: callee < k");
  EXPECT_EQ(chain_text(outcome.image->resolve("alias", 0x100)), "no-lineinfo: callee < alias");
  EXPECT_EQ(chain_text(outcome.image->resolve("alias", 0)), "no-lineinfo: alias");
}

}  // namespace
}  // namespace gpuprof::cubin

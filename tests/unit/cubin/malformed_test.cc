// SPDX-License-Identifier: Apache-2.0
//
// Images that no compiler writes: an error in one line, or an image that answers, within 1 s and
// 200 MB.
#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "daemon/cubin/image.h"
#include "tests/unit/cubin/cubin_writer.h"
#include "tests/unit/cubin/fixture.h"
#include "tests/unit/cubin/handmade.h"

namespace gpuprof::cubin {
namespace {

using test::chain_text;
using test::CubinWriter;
using test::fixture_bytes;
using test::Handmade;
using test::kKernelBytes;
using test::LineProgram;
using test::Outcome;
using test::parse_within_bounds;
using test::u32_bytes;
using testing::HasSubstr;
const char* const kDamaged[] = {"inline_chain.sm_90", "apart.sm_75", "linked.sm_120",
                                "equal_offsets.sm_80"};

// The program headers are the last thing in nvcc's files, so no truncated one is whole.
TEST(Malformed, TruncatedAnywhere) {
  for (const char* const name : kDamaged) {
    const auto bytes = fixture_bytes(std::string(name) + ".cubin");
    for (size_t size = 0; size < bytes.size(); size += size < 512 ? 1 : 13) {
      const Outcome outcome = parse_within_bounds({bytes.begin(), bytes.begin() + size});
      ASSERT_FALSE(outcome.image) << name << " cut to " << size;
    }
  }
}

struct Span {
  size_t begin = 0;
  size_t end = 0;
};

// Where the parser looks: the headers, the symbols, the line table and its relocations.
std::vector<Span> read_parts(const std::vector<std::byte>& bytes) {
  Elf64_Ehdr header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  std::memcpy(sections.data(), bytes.data() + header.e_shoff, header.e_shnum * sizeof(Elf64_Shdr));
  std::vector<Span> spans = {
      {0, sizeof(header)}, {header.e_shoff, header.e_shoff + header.e_shnum * sizeof(Elf64_Shdr)}};
  uint32_t line_table = 0;
  for (uint32_t i = 1; i < sections.size(); ++i) {
    const auto* const name = reinterpret_cast<const char*>(
        bytes.data() + sections[header.e_shstrndx].sh_offset + sections[i].sh_name);
    if (std::strcmp(name, ".debug_line") == 0) line_table = i;
  }
  for (uint32_t i = 1; i < sections.size(); ++i) {
    const Elf64_Shdr& section = sections[i];
    const bool relocates = section.sh_type == SHT_RELA || section.sh_type == SHT_REL;
    if (i == line_table || section.sh_type == SHT_SYMTAB || section.sh_type == SHT_STRTAB ||
        (relocates && section.sh_info == line_table)) {
      spans.push_back({section.sh_offset, section.sh_offset + section.sh_size});
    }
  }
  return spans;
}

TEST(Malformed, EachByteDamaged) {
  for (const char* const name : kDamaged) {
    const auto bytes = fixture_bytes(std::string(name) + ".cubin");
    uint64_t refused = 0;
    for (const Span& span : read_parts(bytes)) {
      for (size_t at = span.begin; at < span.end; ++at) {
        const auto good = static_cast<uint8_t>(bytes[at]);
        for (const int bad : {0x00, 0x01, 0x7f, 0x80, 0xff, good ^ 0x10}) {
          if (bad == good) continue;
          auto damaged = bytes;
          damaged[at] = static_cast<std::byte>(bad);
          if (!parse_within_bounds(std::move(damaged)).image) ++refused;
        }
      }
    }
    EXPECT_GT(refused, 1'000u) << name;
  }
}

// Every aligned word of the headers, the section table and the symbols.
TEST(Malformed, SizesPastTheEndAndOfFourGigabytes) {
  for (const char* const name : kDamaged) {
    const auto bytes = fixture_bytes(std::string(name) + ".cubin");
    for (const Span& span : read_parts(bytes)) {
      for (size_t at = span.begin; at + 8 <= span.end; at += 4) {
        for (const uint64_t bad :
             {uint64_t{bytes.size() - 1}, uint64_t{0xffffffff}, uint64_t{0x100000000},
              uint64_t{0x7fffffffffffffff}, UINT64_MAX}) {
          auto damaged = bytes;
          std::memcpy(damaged.data() + at, &bad, sizeof(bad));
          parse_within_bounds(std::move(damaged));
        }
      }
    }
  }
}

// Shared memory is a section without bytes, which may be said to lie anywhere.
TEST(Malformed, SectionsWithoutBytesMayBeLargerThanTheFile) {
  auto bytes = fixture_bytes("apart.sm_75.cubin");
  Elf64_Ehdr header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  int changed = 0;
  for (uint64_t i = 1; i < header.e_shnum; ++i) {
    const uint64_t at = header.e_shoff + i * sizeof(Elf64_Shdr);
    Elf64_Shdr section;
    std::memcpy(&section, bytes.data() + at, sizeof(section));
    if (section.sh_type != SHT_NOBITS) continue;
    section.sh_size = uint64_t{1} << 40;
    std::memcpy(bytes.data() + at, &section, sizeof(section));
    ++changed;
  }
  ASSERT_GT(changed, 0);
  EXPECT_TRUE(parse_within_bounds(std::move(bytes)).image);
}

TEST(Malformed, OtherFilesAreRefusedByWhatTheyAre) {
  EXPECT_EQ(parse_within_bounds({}).error, "not an ELF file");
  auto bytes = fixture_bytes("inline_chain.sm_90.cubin");
  bytes[18] = std::byte{62};  // e_machine: x86-64
  EXPECT_EQ(parse_within_bounds(bytes).error,
            "not a cubin: its ELF machine is 62, a cubin's is 190");
}

TEST(Malformed, TheHandmadeImageItselfIsWellFormed) {
  Handmade image;
  const uint64_t name = image.writer().string("callee");
  image.program().row(0, 10);
  image.program().inlined_call(1, name);
  image.program().set_file(2);
  image.program().row(0, 20);
  const Outcome outcome = image.end_sequence_and_parse();
  ASSERT_TRUE(outcome.image) << outcome.error;
  EXPECT_EQ(chain_text(outcome.image->resolve("k", 8)), "resolved: callee b.cu:20 < k a.cu:10");
}

TEST(Malformed, ContextCycles) {
  for (const uint64_t context : {2u, 3u, 4u}) {  // itself, the next, and beyond the rows
    Handmade image;
    image.program().row(0, 10);
    image.program().inlined_call(context, 0);
    image.program().row(0, 20);
    image.program().inlined_call(2, 0);
    image.program().row(0, 30);
    EXPECT_THAT(image.end_sequence_and_parse().error, HasSubstr("call site beyond the rows"));
  }
}

TEST(Malformed, ContextsOfTheSequenceBeforeAreBeyondTheRows) {
  Handmade image;
  for (uint32_t i = 0; i < 10; ++i) image.program().row(i * 16, i + 1);
  image.program().end_sequence(kKernelBytes);
  image.program().set_address(1);
  image.program().inlined_call(5, 0);
  image.program().row(0, 1);
  EXPECT_THAT(image.end_sequence_and_parse().error, HasSubstr("call site beyond the rows"));
}

TEST(Malformed, NestingHasAnEnd) {
  Handmade image;
  image.program().row(0, 10);
  for (uint64_t i = 1; i < 5000; ++i) {
    image.program().inlined_call(i, 0);
    image.program().row(0, 10 + i);
  }
  EXPECT_THAT(image.end_sequence_and_parse().error, HasSubstr("nested inlined calls"));
}

TEST(Malformed, OpcodesOfWrongLength) {
  const std::pair<std::string, const char*> cases[] = {
      {std::string("\0\0", 2), "extended opcode 0"},
      {std::string("\0\5\2\0\0\0", 6), "ends inside a unit"},               // longer than the unit
      {std::string("\0\4\2\0\0\0", 6), "extended opcode 2"},                // an address of 3 bytes
      {std::string("\0\12\2\0\0\0\0\0\0\0\0\0", 12), "extended opcode 2"},  // and of 9
      {std::string("\0\1\x90", 3), "extended opcode 144"},
      {std::string("\0\2\x90\1", 4), "extended opcode 144"},
      {std::string("\0\3\x90\x80\x80", 5), "extended opcode 144"},
      {std::string("\0\1\x91", 3), "extended opcode 145"},
      {std::string("\0\3\3ab", 5), "extended opcode 3"},
      {std::string("\2\x80\x80", 3), "ends inside a unit"},
      {std::string("\x09\1", 2), "ends inside a unit"},
      {std::string("\1", 1), "ends inside a sequence"},
  };
  for (const auto& [bytes, error] : cases) {
    Handmade image;
    image.program().row(0, 10);
    image.program().raw(bytes);
    EXPECT_THAT(image.parse().error, HasSubstr(error)) << testing::PrintToString(bytes);
  }
}

TEST(Malformed, UnitHeaders) {
  const std::pair<std::string, const char*> cases[] = {
      {std::string("\0\0\0\0", 4), "ends inside a unit"},
      {std::string("\xf0\xff\xff\xff", 4), "malformed length"},
      {std::string("\xff\xff\xff\xff\0\0\0\0\0\0\0\0", 12), "64-bit unit"},
      {std::string("\xef\xff\xff\xff\2\0", 6), "ends inside a unit"},  // 4 GB
      {std::string("\6\0\0\0\2\0\xff\xff\xff\xff", 10), "ends inside a unit"},
      {std::string("\6\0\0\0\2\0\0\0\0\0", 10), "malformed header"},
      {std::string("\xb\0\0\0\2\0\5\0\0\0\1\1\0\0\1", 15), "malformed header"},  // line_range 0
      {std::string("\xb\0\0\0\2\0\5\0\0\0\1\1\0\1\0", 15), "malformed header"},  // opcode_base 0
      {std::string("\xb\0\0\0\2\0\5\0\0\0\1\1\0\1\1", 15), "malformed header"},  // no tables
      {std::string("\xd\0\0\0\2\0\7\0\0\0\1\1\0\1\1ab", 17), "malformed header"},
  };
  for (const auto& [bytes, error] : cases) {
    CubinWriter writer;
    writer.kernel("k", kKernelBytes);
    writer.raw_unit(bytes);
    EXPECT_THAT(parse_within_bounds(writer.finish()).error, HasSubstr(error))
        << testing::PrintToString(bytes);
  }
}

TEST(Malformed, UnknownVersionsAreSkipped) {
  CubinWriter writer;
  writer.kernel("k", kKernelBytes);
  writer.raw_unit(std::string("\6\0\0\0\5\0\xff\xff\xff\xff", 10));
  const Outcome outcome = parse_within_bounds(writer.finish());
  ASSERT_TRUE(outcome.image) << outcome.error;
  EXPECT_FALSE(outcome.image->has_line_info());
  EXPECT_EQ(chain_text(outcome.image->resolve("k", 0)), "no-lineinfo: k");
}

TEST(Malformed, RowsPastTheEndOfTheSection) {
  Handmade image;
  image.program().row(0, 10);
  image.program().row(kKernelBytes + 16, 11);
  image.program().end_sequence(kKernelBytes + 32);
  EXPECT_THAT(image.parse().error, HasSubstr("past the end of its function's section"));
}

TEST(Malformed, AddressesBeyondFourGigabytes) {
  Handmade image;
  image.program().row(uint64_t{1} << 32, 10);
  EXPECT_THAT(image.end_sequence_and_parse().error, HasSubstr("beyond 4 GiB"));
}

TEST(Malformed, RelocationsToNoSymbol) {
  Handmade image;
  image.program().row(0, 10);
  image.writer().relocation(0, 4711);
  EXPECT_THAT(image.end_sequence_and_parse().error, HasSubstr("refers to no symbol"));
}

// What follows claims as much as 20 MB can.
constexpr uint64_t kLargeBytes = 20'000'000;

TEST(Malformed, ARowInEveryByte) {
  for (const uint64_t text_bytes : {kKernelBytes, kLargeBytes / 2}) {
    CubinWriter writer;
    LineProgram program;
    program.set_address(writer.kernel("k", text_bytes));
    const uint64_t rows = kLargeBytes - text_bytes - 1000;
    // Opcodes 24 to 37: one byte further, another line.
    for (uint64_t i = 0; i < rows; ++i) program.byte(24 + i % 7 * 2);
    program.raw(std::string("\0\1\1", 3));
    writer.unit(program, {"a.cu"});
    parse_within_bounds(writer.finish());
  }
}

TEST(Malformed, PathsThatRepeatALongDirectory) {
  CubinWriter writer;
  const size_t kernel = writer.kernel("k", kKernelBytes);
  std::string tables("\0\1\1\1\1\0\0\0\1", 9);
  tables += std::string(1'000'000, 'd') + std::string("\0\0", 2);
  constexpr int kFiles = 50'000;
  for (int i = 0; i < kFiles; ++i) tables += std::string("f\0\1\0\0", 5);
  tables += '\0';
  LineProgram program;
  program.set_address(kernel);
  for (int i = 1; i <= kFiles; ++i) {
    program.set_file(i);
    program.row(0, i);
  }
  program.end_sequence(kKernelBytes);
  const std::string header = std::string("\1\1\xfb\x0e\x0a", 5) + tables;
  writer.raw_unit(u32_bytes(6 + header.size() + program.bytes().size()) + std::string("\2\0", 2) +
                  u32_bytes(header.size()) + header + program.bytes());
  writer.relocation(10 + header.size() + program.operands()[0].offset,
                    static_cast<uint32_t>(kernel));
  EXPECT_THAT(parse_within_bounds(writer.finish()).error, HasSubstr("paths have no end"));
}

TEST(Malformed, SymbolsThatShareOneLongName) {
  CubinWriter writer;
  const size_t text = writer.text("k", kKernelBytes);
  writer.symbol(std::string(kLargeBytes / 2, 'n'), text, 0, kKernelBytes, true);
  for (uint64_t i = 0; i < kLargeBytes / 2 / 26; ++i) writer.symbol("k", text, 0, 16, false, true);
  auto bytes = writer.finish();
  Elf64_Ehdr header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  for (uint64_t i = 1; i < header.e_shnum; ++i) {
    Elf64_Shdr section;
    std::memcpy(&section, bytes.data() + header.e_shoff + i * sizeof(section), sizeof(section));
    if (section.sh_type != SHT_SYMTAB) continue;
    for (uint64_t at = 2 * sizeof(Elf64_Sym); at < section.sh_size; at += sizeof(Elf64_Sym)) {
      const auto name = static_cast<uint32_t>(at / sizeof(Elf64_Sym));
      std::memcpy(bytes.data() + section.sh_offset + at, &name, sizeof(name));
    }
  }
  EXPECT_THAT(parse_within_bounds(std::move(bytes)).error, HasSubstr("has no name"));
}

TEST(Malformed, NothingButSymbols) {
  CubinWriter writer;
  const size_t text = writer.text("k", kKernelBytes);
  for (uint64_t i = 0; i < kLargeBytes / 26; ++i) {
    writer.symbol("k", text, i % kKernelBytes, 0, i % 2 != 0, true);
  }
  parse_within_bounds(writer.finish());
}

Elf64_Shdr section_at(const std::vector<std::byte>& bytes, uint64_t index) {
  Elf64_Ehdr header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  Elf64_Shdr section;
  std::memcpy(&section, bytes.data() + header.e_shoff + index * sizeof(section), sizeof(section));
  return section;
}

void set_section(std::vector<std::byte>& bytes, uint64_t index, const Elf64_Shdr& section) {
  Elf64_Ehdr header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  std::memcpy(bytes.data() + header.e_shoff + index * sizeof(section), &section, sizeof(section));
}

// Section 0 stands for none, and its extent is nobody's.
TEST(Malformed, NamesInSectionZero) {
  const auto whole = fixture_bytes("inline_chain.sm_90.cubin");
  Elf64_Ehdr header;
  std::memcpy(&header, whole.data(), sizeof(header));
  Elf64_Shdr zero{};
  zero.sh_type = SHT_STRTAB;
  zero.sh_offset = uint64_t{1} << 40;
  zero.sh_size = 4096;

  auto bytes = whole;
  set_section(bytes, 0, zero);
  header.e_shstrndx = 0;
  std::memcpy(bytes.data(), &header, sizeof(header));
  EXPECT_THAT(parse_within_bounds(bytes).error, HasSubstr("no section names"));

  bytes = whole;
  set_section(bytes, 0, zero);
  for (uint64_t i = 1; i < header.e_shnum; ++i) {
    Elf64_Shdr section = section_at(bytes, i);
    if (section.sh_type != SHT_SYMTAB) continue;
    section.sh_link = 0;
    set_section(bytes, i, section);
  }
  EXPECT_THAT(parse_within_bounds(bytes).error, HasSubstr("symbol table is malformed"));
}

TEST(Malformed, RelocationsOfTheLineTableTwice) {
  auto bytes = fixture_bytes("inline_chain.sm_90.cubin");
  Elf64_Ehdr header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  uint64_t relocations = 0, other = 0;
  for (uint64_t i = 1; i < header.e_shnum; ++i) {
    const Elf64_Shdr section = section_at(bytes, i);
    if (section.sh_type == SHT_RELA) {
      if (relocations == 0 && section.sh_size != 0) relocations = i;  // .rela.debug_line
    } else if (section.sh_type >= SHT_LOPROC) {
      other = i;  // NVIDIA's own, which nobody reads
    }
  }
  ASSERT_NE(relocations, 0u);
  ASSERT_NE(other, 0u);
  set_section(bytes, other, section_at(bytes, relocations));
  const std::string error = parse_within_bounds(bytes).error;
  EXPECT_THAT(error, HasSubstr("relocations twice"));
}

}  // namespace
}  // namespace gpuprof::cubin

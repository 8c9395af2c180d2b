// SPDX-License-Identifier: Apache-2.0
// Call frame information that is made to be expensive, endless or out of bounds. The file's
// functions stay without a rule, or have the one that its valid part gives; what it costs is
// bounded.
#include <dwarf.h>
#include <gtest/gtest.h>
#include <time.h>

#include <fstream>
#include <functional>
#include <string>

#include "daemon/unwind/cfi_cursor.h"
#include "daemon/unwind/cfi_expression.h"
#include "daemon/unwind/elf_cfi.h"
#include "daemon/unwind/elf_file.h"
#include "tests/unit/unwind/elf_builder.h"

namespace gpuprof::unwind {
namespace {

using test::Bytes;
using test::put;

constexpr uint64_t kStart = 0x1000;
constexpr uint64_t kLength = 0x8000;
constexpr size_t kMegabyte = 1 << 20;
const Bytes kCieProgram = {DW_CFA_def_cfa, 7, 8, DW_CFA_offset | 16, 1};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = false;
#endif
#if defined(GPUPROF_EMULATED)
constexpr bool kIsSlow = true;
#else
constexpr bool kIsSlow = kIsSanitized;
#endif

// The most that anything here may add to the process, the file's bytes not counted, and the
// processor time that it may take: the thread's own, so other load does not count.
constexpr size_t kMaxGrowthKb = (kIsSanitized ? 160 : 40) << 10;  // with TSan's shadow of it
constexpr double kMaxSeconds = kIsSlow ? 30 : 0.5;

Bytes repeat(uint8_t byte, size_t count) { return Bytes(count, byte); }

Bytes operator+(Bytes a, const Bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Bytes uleb(uint64_t v) {
  Bytes out;
  do {
    out.push_back(static_cast<uint8_t>((v & 0x7f) | (v > 0x7f ? 0x80 : 0)));
    v >>= 7;
  } while (v != 0);
  return out;
}

// Parts of .eh_frame and the file around it.
Bytes record(Bytes body) {
  Bytes out;
  put(out, body.size(), 4);
  return out + body;
}

Bytes cie_body(const std::string& augmentation, const Bytes& data = {}) {
  Bytes out;
  put(out, 0, 4);
  out.push_back(1);
  out.insert(out.end(), augmentation.begin(), augmentation.end());
  return out + Bytes{0, 1, 0x78, 16} + data + kCieProgram;
}

Bytes fde_body(uint64_t to_cie, uint64_t start, uint64_t length, const Bytes& program = {}) {
  Bytes out;
  put(out, to_cie, 4);
  put(out, start, 8);
  put(out, length, 8);
  return out + program;
}

// One CIE and one FDE with this program.
Bytes frames_with(const Bytes& program) {
  return test::eh_frame(16, -8, kCieProgram, kStart, kLength, program);
}

std::shared_ptr<ElfFile> open(const Bytes& frames) {
  auto file = ElfFile::from_memory(test::elf_file(EM_X86_64, frames));
  EXPECT_TRUE(file.has_value());
  return *file;
}

FrameRule first_rule(const Bytes& frames) { return open(frames)->cfi().rule(kStart); }

void expect_plain(const FrameRule& rule) {
  EXPECT_TRUE(rule.present);
  EXPECT_EQ(rule.cfa_reg, 7);
  EXPECT_EQ(rule.cfa_value, 8);
}

size_t peak_kb() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    size_t kb = 0;
    if (word == "VmHWM:" && status >> kb) return kb;
  }
  ADD_FAILURE() << "no VmHWM";
  return 0;
}

double thread_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void expect_cheap(const std::function<void()>& work) {
  std::ofstream("/proc/self/clear_refs") << 5;  // the peak is counted from here
  const size_t before = peak_kb();
  const double start = thread_seconds();
  work();
  EXPECT_LT(thread_seconds() - start, kMaxSeconds);
  EXPECT_LT(peak_kb() - before, kMaxGrowthKb);
}

TEST(HostileCfi, APartThatLeavesItsSectionIsCutOrFails) {
  const Bytes section = repeat(1, 8);
  CfiCursor cut(section, 6, 100);
  EXPECT_EQ(cut.end(), 8u);
  EXPECT_EQ(cut.offset(), 6u);
  EXPECT_EQ(cut.fixed<uint16_t>(), 0x0101u);
  EXPECT_EQ(cut.offset(), 8u);
  EXPECT_TRUE(cut.done());
  EXPECT_FALSE(cut.failed());
  for (const uint64_t begin : {uint64_t{9}, UINT64_MAX}) {
    const CfiCursor outside(section, begin, UINT64_MAX);
    EXPECT_TRUE(outside.failed());
    EXPECT_TRUE(outside.done());
    EXPECT_EQ(outside.offset(), 8u);
  }
  EXPECT_TRUE(CfiCursor(section, 5, 4).failed());
}

TEST(HostileCfi, StatesRememberedForEver) {
  const auto file = open(frames_with(repeat(DW_CFA_remember_state, kMegabyte / 2)));
  expect_cheap([&] { EXPECT_FALSE(file->cfi().rule(kStart).present); });
  const Bytes nested = repeat(DW_CFA_remember_state, kMaxRememberedRows);
  expect_plain(first_rule(frames_with(nested + repeat(DW_CFA_restore_state, nested.size()))));
  EXPECT_FALSE(first_rule(frames_with({DW_CFA_restore_state})).present);
}

// libdw has an array up to the highest register: 2 GiB for this one.
TEST(HostileCfi, RegisterNumbersWithoutEnd) {
  for (const uint64_t reg : {uint64_t{0x7000000}, ~uint64_t{0}, uint64_t{1} << 32}) {
    for (const uint8_t opcode : {DW_CFA_same_value, DW_CFA_undefined, DW_CFA_restore_extended}) {
      const auto file = open(frames_with(Bytes{opcode} + uleb(reg)));
      expect_cheap([&] { expect_plain(file->cfi().rule(kStart)); });
    }
    const auto saved = open(frames_with(Bytes{DW_CFA_offset_extended} + uleb(reg) + Bytes{2}));
    expect_cheap([&] { expect_plain(saved->cfi().rule(kStart)); });
  }
}

// 8 MB of instructions that go nowhere: each address would run them all.
TEST(HostileCfi, ProgramsAreBounded) {
  const auto file = open(frames_with(repeat(DW_CFA_advance_loc, 8 * kMegabyte)));
  expect_cheap([&] {
    for (uint64_t i = 0; i < 1000; ++i) EXPECT_FALSE(file->cfi().rule(kStart + i).present);
  });
  expect_plain(first_rule(frames_with(repeat(DW_CFA_nop, kMaxProgramBytes - 64))));
}

// Programs as long as they may be, at a new address each: after some there is no rule for now, and
// a rule again once questions have earned it.
TEST(HostileCfi, ExpensiveRulesAreRationed) {
  Bytes states;
  while (states.size() < kMaxProgramBytes - 64) {
    states.insert(states.end(), {DW_CFA_remember_state, DW_CFA_restore_state});
  }
  const auto file = open(frames_with(states));
  CfiTable& table = file->cfi();
  int present = 0;
  expect_cheap([&] {
    for (uint64_t i = 0; i < 1000; ++i) present += table.rule(kStart + i).present;
  });
  EXPECT_GE(present, 1);
  EXPECT_LT(present, 8);
  expect_plain(table.rule(kStart));  // what is known stays known
  const int64_t most = static_cast<int64_t>(kMaxProgramBytes * kRowCost) / CfiTable::kCreditPerRule;
  for (int64_t i = 0; i <= 2 * most; ++i) (void)table.rule(kStart);
  expect_plain(table.rule(kStart + kLength - 1));
}

// 17 registers with an expression of 120 operations, at every address.
TEST(HostileCfi, ManyLargeExpressions) {
  Bytes program;
  for (uint8_t reg = 0; reg < 17; ++reg) {
    program = program + Bytes{DW_CFA_expression, reg} + uleb(120) + repeat(DW_OP_lit1, 120);
  }
  const auto file = open(frames_with(program));
  CfiTable& table = file->cfi();
  expect_cheap([&] {
    for (uint64_t i = 0; i < 8'000; ++i) {
      const FrameRule rule = table.rule(kStart + i);
      if (rule.present) {
        ASSERT_EQ(table.registers(rule).size(), 17u);
      }
    }
  });
}

TEST(HostileCfi, ExpressionsAreBounded) {
  auto with_cfa = [](uint64_t claimed, const Bytes& block) {
    return first_rule(frames_with(Bytes{DW_CFA_def_cfa_expression} + uleb(claimed) + block));
  };
  auto has_rule = [&](const Bytes& block) { return with_cfa(block.size(), block).present; };
  EXPECT_TRUE(has_rule(repeat(DW_OP_lit1, kMaxExprOps)));
  EXPECT_FALSE(has_rule(repeat(DW_OP_lit1, kMaxExprOps + 1)));
  EXPECT_FALSE(has_rule(repeat(DW_OP_lit1, kMegabyte / 2)));
  EXPECT_FALSE(has_rule({}));
  EXPECT_TRUE(has_rule({DW_OP_lit1, DW_OP_bra, 0xfc, 0xff}));   // back to its first operation
  EXPECT_FALSE(has_rule({DW_OP_lit1, DW_OP_bra, 0xfe, 0xff}));  // into itself
  EXPECT_FALSE(has_rule({DW_OP_lit1, DW_OP_bra, 0xfb, 0xff}));  // before the beginning
  EXPECT_FALSE(has_rule({DW_OP_lit1, DW_OP_skip, 0x01, 0x00}));
  EXPECT_FALSE(has_rule({DW_OP_breg7, 0x80}));
  EXPECT_FALSE(has_rule({DW_OP_entry_value, 3, DW_OP_entry_value, 1, DW_OP_reg0}));  // nested
  EXPECT_FALSE(with_cfa(~uint64_t{0}, {DW_OP_lit1}).present);
  EXPECT_FALSE(with_cfa(100, {DW_OP_lit1}).present);
}

TEST(HostileCfi, ProgramsThatEndInAnInstruction) {
  for (const Bytes& program : std::vector<Bytes>{{DW_CFA_advance_loc4, 1, 0, 0},
                                                 {DW_CFA_def_cfa, 0x87},
                                                 {DW_CFA_def_cfa},
                                                 {DW_CFA_set_loc, 1, 2},
                                                 {DW_CFA_expression, 3, 0x80},
                                                 {0x3f},
                                                 {DW_CFA_GNU_window_save}}) {
    Bytes frames = record(cie_body(""));
    const size_t at = frames.size() + 4;
    frames = frames + record(fde_body(at, kStart, kLength, program));
    EXPECT_FALSE(first_rule(frames).present) << int{program[0]};
  }
}

TEST(HostileCfi, CiePointersAnywhere) {
  const Bytes cie = record(cie_body(""));
  for (const uint64_t distance : {uint64_t{0xffffffff}, uint64_t{0x80000000}, cie.size() + 3,
                                  cie.size() + 5, uint64_t{1}, uint64_t{4}, uint64_t{12}}) {
    EXPECT_FALSE(first_rule(cie + record(fde_body(distance, kStart, kLength))).present) << distance;
  }
  expect_plain(first_rule(cie + record(fde_body(cie.size() + 4, kStart, kLength))));
}

TEST(HostileCfi, LengthsAnywhere) {
  const Bytes cie = record(cie_body(""));
  const Bytes good = record(fde_body(cie.size() + 4, kStart, kLength));
  expect_plain(first_rule(cie + good));
  auto before = [&](const Bytes& hostile) {
    Bytes fde = record(fde_body(cie.size() + hostile.size() + 4, kStart, kLength));
    return first_rule(cie + hostile + fde).present;
  };
  auto raw = [](uint64_t length, uint64_t length64 = 0) {
    Bytes out;
    put(out, length, 4);
    if (length == 0xffffffff) put(out, length64, 8);
    return out;
  };
  EXPECT_FALSE(before(raw(0)));  // the terminator
  EXPECT_FALSE(before(raw(3)));  // would lead back into itself
  EXPECT_FALSE(before(raw(0xfffffff0)));
  EXPECT_FALSE(before(raw(0x7fffffff)));
  for (const uint64_t length : {~uint64_t{0}, ~uint64_t{11}, uint64_t{1} << 63, uint64_t{1} << 32,
                                uint64_t{0}, uint64_t{8}}) {
    EXPECT_FALSE(before(raw(0xffffffff, length))) << length;
  }
  EXPECT_TRUE(before(record(Bytes(5, 0xee))));            // a bad record is passed over
  EXPECT_TRUE(before(raw(0xffffffff, 9) + Bytes(9, 1)));  // so is one of 64 bits
}

TEST(HostileCfi, Augmentations) {
  auto has_rule = [](const std::string& letters, const Bytes& data) {
    const Bytes cie = record(cie_body(letters, data));
    const Bytes block = letters.starts_with('z') ? Bytes{0} : Bytes{};
    return first_rule(cie + record(fde_body(cie.size() + 4, kStart, kLength, block))).present;
  };
  EXPECT_TRUE(has_rule("", {}));
  EXPECT_TRUE(has_rule("zR", {1, DW_EH_PE_absptr}));
  EXPECT_TRUE(has_rule("zPLRS", {11, DW_EH_PE_udata8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0}));
  EXPECT_FALSE(has_rule("zR", {0}));                       // no data for the letter
  EXPECT_FALSE(has_rule("zP", {1, DW_EH_PE_absptr}));      // nor for the pointer
  EXPECT_FALSE(has_rule("zR", {1, DW_EH_PE_omit}));        // an address that is not there
  EXPECT_FALSE(has_rule("zR", {1, DW_EH_PE_indirect}));    // or somewhere else
  EXPECT_FALSE(has_rule("zR", {0xff, 0xff, 0xff, 0x7f}));  // larger than the section
  EXPECT_FALSE(has_rule("zR" + std::string(100'000, 'R'), {1, 0}));
  EXPECT_FALSE(has_rule("eh", Bytes(8)));
  // No end at all.
  Bytes cie;
  put(cie, 0, 4);
  cie = record(cie + Bytes{1} + repeat('z', kMegabyte));
  EXPECT_FALSE(first_rule(cie + record(fde_body(cie.size() + 4, kStart, kLength))).present);
}

TEST(HostileCfi, RangesThatWrap) {
  auto rule_at = [](uint64_t start, uint64_t length, uint64_t address) {
    const Bytes cie = record(cie_body(""));
    return open(cie + record(fde_body(cie.size() + 4, start, length)))->cfi().rule(address);
  };
  EXPECT_FALSE(rule_at(~uint64_t{0} - 4, 0x2000, kStart).present);
  EXPECT_FALSE(rule_at(kStart, 0, kStart).present);
  EXPECT_FALSE(rule_at(kStart, ~uint64_t{0}, kStart).present);
  expect_plain(rule_at(0, ~uint64_t{0}, kStart));
  // Locations that wrap end nothing early and loop for nobody.
  const Bytes back = {DW_CFA_set_loc, 1, 0, 0, 0, 0, 0, 0, 0, DW_CFA_def_cfa_offset, 8};
  expect_plain(first_rule(frames_with(back)));
}

// 36 MB of the smallest records, without .eh_frame_hdr.
TEST(HostileCfi, IndexIsBounded) {
  Bytes frames = record(cie_body("zR", {1, DW_EH_PE_udata2}));
  const Bytes small = {9, 0, 0, 0};
  while (frames.size() < 36 * kMegabyte) {
    const uint64_t here = frames.size();
    frames.insert(frames.end(), small.begin(), small.end());
    put(frames, here + 4, 4);
    put(frames, here / 13 % 0xf000, 2);
    put(frames, 1, 2);
    frames.push_back(0);
  }
  const auto file = open(frames);
  expect_cheap([&] {
    expect_plain(file->cfi().rule(kStart));
    EXPECT_FALSE(file->cfi().rule(0xf800).present);  // no record is about it
  });
}

// A megabyte with as many CIEs as there is room for, each used by an FDE of its own.
TEST(HostileCfi, ChainOfCies) {
  Bytes frames;
  uint64_t start = kStart;
  while (frames.size() < kMegabyte) {
    const Bytes cie = record(cie_body(""));
    frames = std::move(frames) + cie + record(fde_body(cie.size() + 4, start++, 1));
  }
  const auto file = open(frames);
  expect_cheap([&] {
    for (uint64_t address = kStart; address < start; ++address) {
      EXPECT_TRUE(file->cfi().rule(address).present);
    }
    EXPECT_FALSE(file->cfi().rule(start).present);
  });
}

class Header {
 public:
  Header(uint8_t pointer, uint8_t count, uint8_t table) : bytes_{1, pointer, count, table} {}
  Header& add(uint64_t v, unsigned size) {
    put(bytes_, v, size);
    return *this;
  }
  // Absolute addresses: .eh_frame, then `bytes_`, is the order of the file.
  [[nodiscard]] bool has_rule(const Bytes& frames) const {
    auto file = ElfFile::from_memory(test::elf_file(
        EM_X86_64, std::vector<test::Section>{{".eh_frame", frames}, {".eh_frame_hdr", bytes_}}));
    return file && (*file)->cfi().rule(kStart + 8).present;
  }

 private:
  Bytes bytes_;
};

constexpr uint8_t kAbsolute = DW_EH_PE_udata8;

TEST(HostileCfi, SearchTables) {
  const Bytes cie = record(cie_body(""));
  const Bytes frames = cie + record(fde_body(cie.size() + 4, kStart, kLength)) + Bytes(4);
  const uint64_t at = test::kSectionsStart;
  const uint64_t fde = at + cie.size();
  auto header = [&](uint64_t count, uint8_t table = kAbsolute) {
    return Header(kAbsolute, DW_EH_PE_udata4, table).add(at, 8).add(count, 4);
  };
  EXPECT_TRUE(header(1).add(kStart, 8).add(fde, 8).has_rule(frames));
  EXPECT_FALSE(header(2).add(kStart, 8).add(fde, 8).has_rule(frames));  // more than it has
  EXPECT_FALSE(header(0xffffffff).add(kStart, 8).add(fde, 8).has_rule(frames));
  // Entries that lead to a CIE, into a record, to the terminator, and out.
  for (const uint64_t target : {at, fde + 1, at + frames.size() - 4, at + frames.size(), at - 1,
                                uint64_t{0}, ~uint64_t{0}, at + (uint64_t{1} << 63)}) {
    EXPECT_FALSE(header(1).add(kStart, 8).add(target, 8).has_rule(frames)) << target;
  }
  // Unsorted, and about other addresses than the FDE.
  Header unsorted = header(64);
  for (uint64_t i = 0; i < 64; ++i) unsorted.add((64 - i) << 40, 8).add(fde, 8);
  EXPECT_FALSE(unsorted.has_rule(frames));
  EXPECT_TRUE(header(1).add(0, 8).add(fde, 8).has_rule(frames));
  EXPECT_FALSE(header(2).add(0, 8).add(fde, 8).add(kStart + 1, 8).add(at, 8).has_rule(frames));
  // Encodings that cannot be a table's, or are unknown: no rule, or those of an index.
  for (const int encoding :
       std::initializer_list<int>{DW_EH_PE_uleb128, DW_EH_PE_sleb128, 0x05, 0x0d}) {
    EXPECT_FALSE(
        header(1, static_cast<uint8_t>(encoding)).add(kStart, 8).add(fde, 8).has_rule(frames));
  }
  EXPECT_FALSE(
      header(1, DW_EH_PE_indirect | kAbsolute).add(kStart, 8).add(fde, 8).has_rule(frames));
  EXPECT_TRUE(header(1, DW_EH_PE_omit).has_rule(frames));
  EXPECT_TRUE(header(0).has_rule(frames));
  EXPECT_FALSE(Header(DW_EH_PE_omit, DW_EH_PE_udata4, kAbsolute).add(1, 4).has_rule(frames));
  EXPECT_FALSE(Header(kAbsolute, DW_EH_PE_udata4, kAbsolute).has_rule(frames));  // cut off
}

TEST(HostileCfi, FilesThatClaimWhatTheyDoNotHave) {
  Bytes image = test::elf_file(EM_X86_64, frames_with({}));
  auto* const header = reinterpret_cast<Elf64_Ehdr*>(image.data());
  auto* const sections = reinterpret_cast<Elf64_Shdr*>(image.data() + header->e_shoff);
  sections[1].sh_size = ~uint64_t{0};
  EXPECT_FALSE((*ElfFile::from_memory(image))->cfi().rule(kStart).present);
  sections[1].sh_size = 0x100;
  sections[1].sh_offset = ~uint64_t{0} - 0x10;
  EXPECT_FALSE((*ElfFile::from_memory(image))->cfi().rule(kStart).present);
  // More sections than a program has: libelf would make room for each.
  header->e_shnum = 0;
  sections[0].sh_size = kMaxSections + 1;
  image.resize(image.size() + (kMaxSections + 1) * sizeof(Elf64_Shdr));
  EXPECT_FALSE(ElfFile::from_memory(image).has_value());
}

// A section that says that it decompresses to 1 GiB.
TEST(HostileCfi, DecompressedSizeIsBounded) {
  Bytes compressed;
  put(compressed, ELFCOMPRESS_ZLIB, 4);
  put(compressed, 0, 4);
  put(compressed, uint64_t{1} << 30, 8);
  put(compressed, 1, 8);
  compressed.resize(2 * kMegabyte, 0x5a);
  const Bytes image = test::elf_file(
      EM_X86_64,
      std::vector<test::Section>{{".debug_frame", compressed, SHT_PROGBITS, SHF_COMPRESSED}});
  auto file = ElfFile::from_memory(image);
  ASSERT_TRUE(file.has_value());
  expect_cheap([&] { EXPECT_FALSE((*file)->cfi().rule(kStart).present); });
}

// A hostile file beside a good one: each has its own rules and its own credit.
TEST(HostileCfi, OtherFilesAreUntouched) {
  const auto hostile = open(frames_with(repeat(DW_CFA_nop, kMaxProgramBytes - 64)));
  const auto good = open(frames_with({DW_CFA_advance_loc | 4, DW_CFA_def_cfa_offset, 16}));
  for (uint64_t i = 0; i < 100; ++i) {
    (void)hostile->cfi().rule(kStart + i);
    EXPECT_EQ(good->cfi().rule(kStart + i).cfa_value, i < 4 ? 8 : 16);
  }
  EXPECT_FALSE(hostile->cfi().rule(kStart + 100).present);
}

}  // namespace
}  // namespace gpuprof::unwind

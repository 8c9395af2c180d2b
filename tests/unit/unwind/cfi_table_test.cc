// SPDX-License-Identifier: Apache-2.0
// Frame rules from hand-made call frame information: both machines, and damaged files.
#include "daemon/unwind/cfi_table.h"

#include <dwarf.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "daemon/unwind/elf_file.h"
#include "daemon/unwind/file_cache.h"
#include "tests/unit/unwind/elf_builder.h"

namespace gpuprof::unwind {
namespace {

using test::Bytes;

constexpr uint64_t kStart = 0x1000;

std::shared_ptr<ElfFile> file_with(uint16_t machine, const Bytes& frames) {
  auto file = ElfFile::from_memory(test::elf_file(machine, frames));
  EXPECT_TRUE(file.has_value());
  return file ? *file : nullptr;
}

const RegisterRule* rule_of(CfiTable& table, const FrameRule& rule, unsigned reg) {
  for (const RegisterRule& r : table.registers(rule)) {
    if (r.reg == reg) return &r;
  }
  return nullptr;
}

TEST(CfiTable, X86RowsByAddress) {
  // CIE: CFA = rsp + 8, ra at cfa-8. FDE: push %rbx at 1 byte.
  const auto file = file_with(
      EM_X86_64,
      test::eh_frame(16, -8, {DW_CFA_def_cfa, 7, 8, DW_CFA_offset | 16, 1}, kStart, 0x20,
                     {DW_CFA_advance_loc | 1, DW_CFA_def_cfa_offset, 16, DW_CFA_offset | 3, 2}));
  CfiTable& table = file->cfi();
  const FrameRule entry = table.rule(kStart);
  ASSERT_TRUE(entry.present);
  EXPECT_EQ(entry.cfa_reg, 7);
  EXPECT_EQ(entry.cfa_value, 8);
  EXPECT_EQ(entry.ra_reg, 16);
  EXPECT_EQ(entry.same_mask & ((1u << 3) | 1u), 1u << 3);  // rbx is call-saved, rax is not
  EXPECT_EQ(rule_of(table, entry, 3), nullptr);
  const FrameRule pushed = table.rule(kStart + 1);
  EXPECT_EQ(pushed.cfa_value, 16);
  ASSERT_NE(rule_of(table, pushed, 3), nullptr);
  EXPECT_EQ(rule_of(table, pushed, 3)->kind, RuleKind::kOffset);
  EXPECT_EQ(rule_of(table, pushed, 3)->value, -16);
  EXPECT_FALSE(table.rule(kStart - 1).present);
  EXPECT_FALSE(table.rule(kStart + 0x20).present);
  EXPECT_EQ(table.size(), 4u);
}

TEST(CfiTable, UndefinedReturnAddressIsOutermost) {
  const auto file =
      file_with(EM_X86_64, test::eh_frame(16, -8, {DW_CFA_def_cfa, 7, 8, DW_CFA_offset | 16, 1},
                                          kStart, 0x20, {DW_CFA_undefined, 16}));
  EXPECT_TRUE(file->cfi().rule(kStart).ra_undefined);
}

TEST(CfiTable, ExpressionsKeepTheirOperands) {
  // cfa = *(rbp - 8); r12 saved at cfa + (-16) by an expression.
  const auto file = file_with(
      EM_X86_64, test::eh_frame(16, -8, {DW_CFA_def_cfa, 7, 8, DW_CFA_offset | 16, 1}, kStart, 0x20,
                                {DW_CFA_def_cfa_expression, 3, DW_OP_breg6, 0x78, DW_OP_deref,
                                 DW_CFA_expression, 12, 3, DW_OP_const1s, 0xf0, DW_OP_plus}));
  CfiTable& table = file->cfi();
  const FrameRule rule = table.rule(kStart);
  ASSERT_TRUE(rule.present);
  ASSERT_TRUE(rule.cfa_is_expression);
  Registers regs;
  regs.set(6, 0x2010);
  uint8_t stack[32] = {};
  const uint64_t saved = 0x2018;
  std::memcpy(stack + 8, &saved, 8);
  const StackView view{0x2000, stack};
  EXPECT_EQ(evaluate(table.expression(rule.cfa_value), regs, view, std::nullopt), 0x2018u);
  const RegisterRule* r12 = rule_of(table, rule, 12);
  ASSERT_NE(r12, nullptr);
  ASSERT_EQ(r12->kind, RuleKind::kExpression);
  EXPECT_EQ(evaluate(table.expression(r12->value), regs, view, 0x2018), 0x2008u);
}

TEST(CfiTable, Aarch64FrameRecord) {
  // stp x29, x30, [sp, #-32]!: cfa = sp + 32, x29 at cfa-32, x30 at cfa-24.
  const auto file =
      file_with(EM_AARCH64, test::eh_frame(30, -8, {DW_CFA_def_cfa, 31, 0}, kStart, 0x40,
                                           {DW_CFA_advance_loc | 4, DW_CFA_def_cfa_offset, 32,
                                            DW_CFA_offset | 29, 4, DW_CFA_offset | 30, 3}));
  CfiTable& table = file->cfi();
  const FrameRule leaf = table.rule(kStart);
  ASSERT_TRUE(leaf.present);
  EXPECT_EQ(leaf.ra_reg, 30);
  EXPECT_EQ(leaf.cfa_reg, 31);
  EXPECT_TRUE(leaf.same_mask >> 30 & 1);  // a leaf returns by x30
  EXPECT_TRUE(leaf.same_mask >> 19 & 1);  // x19 to x29 are call-saved
  EXPECT_FALSE(leaf.same_mask >> 9 & 1);
  const FrameRule saved = table.rule(kStart + 4);
  EXPECT_EQ(saved.cfa_value, 32);
  ASSERT_NE(rule_of(table, saved, 30), nullptr);
  EXPECT_EQ(rule_of(table, saved, 30)->value, -24);
}

TEST(CfiTable, ClearsItselfWhenFull) {
  const auto file = file_with(
      EM_X86_64,
      test::eh_frame(16, -8, {DW_CFA_def_cfa, 7, 8, DW_CFA_offset | 16, 1}, kStart, 0x100000, {}));
  CfiTable& table = file->cfi();
  for (uint64_t i = 0; i < CfiTable::kMaxRules + 10; ++i)
    ASSERT_TRUE(table.rule(kStart + i).present);
  EXPECT_LE(table.size(), CfiTable::kMaxRules);
  EXPECT_EQ(table.rule(kStart).cfa_value, 8);
}

TEST(ElfFile, RefusesWhatItCannotUse) {
  EXPECT_FALSE(ElfFile::from_memory(Bytes(100)).has_value());
  EXPECT_FALSE(ElfFile::from_memory(test::elf_file(EM_386, {0, 0, 0, 0})).has_value());
  EXPECT_EQ(ElfFile::from_memory(test::elf_file(EM_RISCV, {0, 0, 0, 0})).error().code,
            Code::kUnsupported);
}

// A real library damaged at random: nothing may crash (run under ASan too).
TEST(ElfFile, DamagedFilesDoNotCrash) {
  std::ifstream in("/proc/self/exe", std::ios::binary);
  const Bytes good((std::istreambuf_iterator<char>(in)), {});
  auto whole = ElfFile::from_memory(good);
  ASSERT_TRUE(whole.has_value());
  const ElfFile::Segment text = (*whole)->segments()[0];
  std::mt19937_64 random(5);
  int parsed = 0;
  for (int round = 0; round < 300; ++round) {
    Bytes bad = good;
    const int where = round % 3;
    for (int i = 0; i < 200; ++i) {
      // The ELF header and program headers, the section headers, or anywhere.
      const size_t at = where == 0   ? 16 + random() % 1000
                        : where == 1 ? bad.size() - 1 - random() % 3000
                                     : random() % bad.size();
      if (where != 0 || i < 3) bad[at] = static_cast<uint8_t>(random());
    }
    if (round % 7 == 0) bad.resize(random() % bad.size());
    auto file = ElfFile::from_memory(std::move(bad));
    if (!file) continue;
    ++parsed;
    (void)(*file)->bias(0x7f0000000000, 0x1000);
    (void)(*file)->decompressed_bytes();
    for (int i = 0; i < 50; ++i) {
      (void)(*file)->cfi().rule(text.address + random() % (text.memory_size + 1));
    }
  }
  EXPECT_GT(parsed, 100);
}

class TemporaryFile {
 public:
  explicit TemporaryFile(const Bytes& content)
      : path_(std::filesystem::temp_directory_path() / ("cfi_test." + std::to_string(getpid()))) {
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<const char*>(content.data()),
               static_cast<std::streamsize>(content.size()));
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] UniqueFd open() const { return UniqueFd(::open(path_.c_str(), O_RDONLY)); }

 private:
  std::filesystem::path path_;
};

Bytes big_file() {
  Bytes content = test::elf_file(
      EM_X86_64,
      test::eh_frame(16, -8, {DW_CFA_def_cfa, 7, 8, DW_CFA_offset | 16, 1}, kStart, 0x20, {}));
  content.resize(1 << 20);
  return content;
}

// The owner of a file truncates it while the daemon has it mapped.
TEST(MappedFile, TruncationGivesZerosInsteadOfDeath) {
  const TemporaryFile on_disk(big_file());
  auto mapped = MappedFile::map(on_disk.open().get());
  ASSERT_TRUE(mapped.has_value());
  mapped->bytes()[5000] = 7;  // private: stays in memory
  std::filesystem::resize_file(on_disk.path(), 100);
  EXPECT_EQ(mapped->bytes()[500'000], 0);
  EXPECT_EQ(mapped->bytes()[(1 << 20) - 1], 0);
  auto file = ElfFile::from_file(std::move(*mapped));
  ASSERT_TRUE(file.has_value());
  (void)(*file)->cfi().rule(kStart);
}

TEST(MappedFileDeathTest, OtherBusErrorsStillKill) {
  const TemporaryFile on_disk(big_file());
  auto mapped = MappedFile::map(on_disk.open().get());  // the handler is installed
  EXPECT_DEATH(  // by the signal, or by a sanitizer's own handler behind ours
      {
        const UniqueFd fd = on_disk.open();
        auto* foreign = static_cast<volatile char*>(
            mmap(nullptr, 1 << 20, PROT_READ, MAP_PRIVATE, fd.get(), 0));
        std::filesystem::resize_file(on_disk.path(), 0);
        (void)foreign[500'000];
      },
      "");
}

TEST(FileCache, OneFileIsOpenedOnce) {
  const TemporaryFile on_disk(big_file());
  FileCache cache;
  auto first = cache.open(on_disk.open());
  auto second = cache.open(on_disk.open());
  ASSERT_TRUE(first && second);
  EXPECT_EQ(*first, *second);
  EXPECT_EQ(cache.size(), 1u);
}

TEST(FileCache, ForgetsOldestUnusedFiles) {
  FileCache cache;
  auto kept = cache.from_memory(test::elf_file(EM_X86_64, {1, 2, 3, 4}));
  ASSERT_TRUE(kept.has_value());
  for (uint32_t i = 0; i < FileCache::kMaxUnusedFiles * 2; ++i) {
    Bytes distinct;
    test::put(distinct, i + (uint64_t{1} << 40), 8);
    ASSERT_TRUE(cache.from_memory(test::elf_file(EM_X86_64, distinct)).has_value());
  }
  EXPECT_LE(cache.size(), FileCache::kMaxUnusedFiles + 1);
  EXPECT_EQ(*cache.from_memory(test::elf_file(EM_X86_64, {1, 2, 3, 4})), *kept);
}

}  // namespace
}  // namespace gpuprof::unwind

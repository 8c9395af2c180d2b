// SPDX-License-Identifier: Apache-2.0
//
// Every instruction's innermost line and inlined name against libdw's, which the two other oracles
// do not name (oracle_test.cc). Its chains are wrong for cubins with several kernels:
// docs/adr/0011.
#include <elfutils/libdw.h>
#include <gtest/gtest.h>
#include <libelf.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "daemon/cubin/elf_image.h"
#include "daemon/cubin/image.h"
#include "tests/unit/cubin/fixture.h"

namespace gpuprof::cubin {
namespace {

struct Row {
  uint64_t address = 0;
  std::string line;  // "file:line"
  std::string inlined;
  bool ends = false;
};

// libdw knows no relocations of cubins: it gets a copy whose set_address operands are in the
// image's linear layout.
std::vector<std::byte> relocated(const std::vector<std::byte>& bytes, const Image& image) {
  std::vector<std::byte> copy = bytes;
  const auto elf = ElfImage::parse(bytes);
  EXPECT_TRUE(elf);
  if (!elf || elf->debug_line.empty()) return {};
  std::map<uint32_t, uint64_t> base;  // of a text section, by its index in the section table
  for (const Function& function : image.functions()) {
    base[function.section] = function.address - function.offset;
  }
  const size_t table = elf->debug_line.data() - bytes.data();
  for (const RelocatedAddress& at : elf->line_addresses) {
    const uint64_t address = base.at(elf->texts[at.text].index) + at.offset;
    std::memcpy(copy.data() + table + at.operand, &address, sizeof(address));
  }
  return copy;
}

std::vector<Row> libdw_rows(std::vector<std::byte>& bytes) {
  std::vector<Row> rows;
  elf_version(EV_CURRENT);
  Elf* const elf = elf_memory(reinterpret_cast<char*>(bytes.data()), bytes.size());
  Dwarf* const dwarf = dwarf_begin_elf(elf, DWARF_C_READ, nullptr);
  Dwarf_CU* unit = nullptr;
  Dwarf_Files* files = nullptr;
  Dwarf_Lines* lines = nullptr;
  size_t file_count = 0;
  size_t count = 0;
  Dwarf_Off next = 0;
  for (Dwarf_Off offset = 0;
       dwarf_next_lines(dwarf, offset, &next, &unit, &files, &file_count, &lines, &count) == 0;
       offset = next) {
    for (size_t i = 0; i < count; ++i) {
      Dwarf_Line* const line = dwarf_onesrcline(lines, i);
      Row& row = rows.emplace_back();
      int number = 0;
      dwarf_lineaddr(line, &row.address);
      dwarf_lineno(line, &number);
      dwarf_lineendsequence(line, &row.ends);
      const char* const file = dwarf_linesrc(line, nullptr, nullptr);
      const char* const name = dwarf_linefunctionname(dwarf, line);
      row.line = (file != nullptr ? file : "") + (':' + std::to_string(number));
      if (dwarf_linecontext(lines, line) != nullptr && name != nullptr) row.inlined = name;
    }
  }
  dwarf_end(dwarf);
  elf_end(elf);
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return a.address < b.address; });
  return rows;
}

// The function that the address lies in: the innermost one is the shortest.
const Function& owner_of(const Image& image, uint64_t address) {
  const Function* owner = nullptr;
  for (const Function& function : image.functions()) {
    if (address < function.address || address - function.address >= function.size_bytes) continue;
    if (owner == nullptr || function.size_bytes < owner->size_bytes) owner = &function;
  }
  return *owner;
}

// Is the innermost frame that of a function that was inlined? Above those that were not are their
// callers.
bool is_inlined(const Image& image, const Resolution& ours) {
  const Function& owner = owner_of(image, ours.address);
  if (owner.is_kernel) return ours.frames.size() > 1;
  const std::string name(ours.frames.front().mangled);
  return owner.mangled != name && !owner.mangled.ends_with('$' + name);
}

class Libdw : public testing::TestWithParam<const char*> {};

TEST_P(Libdw, InnermostLineAndNameAreTheSame) {
  const auto image = test::fixture_image(GetParam());
  ASSERT_TRUE(image);
  const auto bytes = test::fixture_bytes(std::string(GetParam()) + ".cubin");
  auto copy = relocated(bytes, *image);
  const auto rows = libdw_rows(copy);
  ASSERT_FALSE(rows.empty());
  uint64_t compared = 0;
  for (const Function& function : image->functions()) {
    for (uint64_t pc = 0; pc < function.size_bytes; pc += 16) {
      const Resolution ours = image->resolve(function.mangled, pc);
      ASSERT_NE(ours.status, SourceStatus::kUnmapped);
      const SourceFrame& innermost = ours.frames.front();
      if (innermost.file.empty()) continue;  // oracle_test.cc says why
      const auto after =
          std::upper_bound(rows.begin(), rows.end(), ours.address,
                           [](uint64_t value, const Row& row) { return value < row.address; });
      ASSERT_NE(after, rows.begin());
      const Row& row = *(after - 1);
      ASSERT_FALSE(row.ends);
      EXPECT_EQ(std::string(innermost.file) + ':' + std::to_string(innermost.line), row.line);
      const bool inlined = is_inlined(*image, ours);
      EXPECT_EQ(inlined ? innermost.mangled : "", row.inlined) << function.mangled << ' ' << pc;
      ++compared;
    }
  }
  EXPECT_GT(compared, 80u);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Libdw,
                         testing::Values("inline_chain.sm_75", "inline_chain.sm_80",
                                         "inline_chain.sm_90", "inline_chain.sm_100",
                                         "inline_chain.sm_120", "inline_chain.sm_90.cuda12",
                                         "inline_chain.sm_90.debug", "apart.sm_75", "apart.sm_120",
                                         "apart.sm_80.cuda11", "apart.sm_100.debug",
                                         "equal_offsets.sm_80", "linked.sm_80", "linked.sm_120",
                                         "long_name.sm_90", "triton_softmax.sm_90", "calls.sm_75",
                                         "calls.sm_86.cuda11", "calls.sm_90", "calls.sm_120"));

}  // namespace
}  // namespace gpuprof::cubin

// SPDX-License-Identifier: Apache-2.0
#include "daemon/python/line_table.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

namespace gpuprof::python {
namespace {

std::vector<uint8_t> from_hex(const std::string& text) {
  std::vector<uint8_t> out;
  for (size_t i = 0; i + 1 < text.size(); i += 2)
    out.push_back(static_cast<uint8_t>(std::stoul(text.substr(i, 2), nullptr, 16)));
  return out;
}

// What each CPython said of its own code objects; tests/data/python/make_lines.py has the recipe.
class LineTable : public testing::TestWithParam<int> {};

TEST_P(LineTable, IsTheInterpretersOwn) {
  const int minor = GetParam();
  const LineTableKind kind = minor == 9    ? LineTableKind::kLnotab
                             : minor == 10 ? LineTableKind::kRanges
                                           : LineTableKind::kLocations;
  std::ifstream file(DATA_DIR "/lines-3." + std::to_string(minor) + ".txt");
  ASSERT_TRUE(file);
  std::string word, table;
  int first_line = 0, codes = 0, lines = 0;
  std::vector<uint8_t> bytes;
  while (file >> word) {
    if (word == "code") {
      file >> first_line >> table;
      bytes = table == "-" ? std::vector<uint8_t>() : from_hex(table);
      ++codes;
      continue;
    }
    uint32_t begin = 0, end = 0, line = 0;
    file >> begin >> end >> line;
    for (uint32_t offset = begin; offset < end; offset += 2) {
      ASSERT_EQ(line_at(kind, bytes, first_line, offset), line)
          << "code " << codes << " byte " << offset;
    }
    ++lines;
  }
  EXPECT_GT(codes, 40);
  EXPECT_GT(lines, 200);
}

INSTANTIATE_TEST_SUITE_P(Versions, LineTable, testing::Range(9, 15));

TEST(LineTableHostile, EndsWithTheTable) {
  const std::vector<uint8_t> ones(4096, 0xff), zeros(4096, 0), more(4096, 0x7f);
  for (const LineTableKind kind :
       {LineTableKind::kLnotab, LineTableKind::kRanges, LineTableKind::kLocations}) {
    for (const auto& table : {ones, zeros, more, std::vector<uint8_t>(), {0xf0}, {0xe8, 0x7f}}) {
      for (const uint32_t offset : {0u, 1u, 255u, 65536u, UINT32_MAX})
        line_at(kind, table, INT32_MAX, offset);
    }
  }
  EXPECT_EQ(line_at(LineTableKind::kLocations, zeros, 5, 0), 0u) << "no entry begins";
  EXPECT_EQ(line_at(LineTableKind::kRanges, {}, 5, 0), 0u);
}

TEST(LineTableHostile, ALineIsANumber) {
  // A delta of -1000 from line 5 in the long form.
  const std::vector<uint8_t> below = {0xf0, 0x51, 0x1f, 0, 0, 0};
  EXPECT_EQ(line_at(LineTableKind::kLocations, below, 5, 0), 0u);
}

}  // namespace
}  // namespace gpuprof::python

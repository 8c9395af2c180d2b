// SPDX-License-Identifier: Apache-2.0
//
// Every instruction of every fixture against what CUPTI and nvdisasm say
// (tests/data/cubin/oracles.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "daemon/cubin/image.h"
#include "tests/unit/cubin/fixture.h"

namespace gpuprof::cubin {
namespace {

constexpr uint64_t kInstructionBytes = 16;

// Of the differences, all that there are.
enum Reason {
  // A function of ptxas' own (the slow path of a division) has no rows. Both tools give it the last
  // row before it, which is another function's; we say that its line is not known.
  kNoRows,
  // The listing prints a chain only where the innermost file and line change. Here they stay while
  // the line that the code was inlined at changes, so it still shows the chain before. The table
  // has
  // a row for it, and the lines after it in the listing agree.
  kNotPrinted,
};

struct Difference {
  const char* fixture;
  const char* function;  // begins so
  uint64_t from;
  uint64_t to;
  const char* ours;  // the function without rows, or the chain
  Reason reason;
};

constexpr char kFromLine14[] =
    "inline_chain.cu:6 < inline_chain.cu:14 < inline_chain.cu:18 < inline_chain.cu:28";

constexpr Difference kDifferences[] = {
    {"apart.sm_120", "_Z4growPfi", 0x600, 0xd80, "__cuda_sm3x_div_rn_noftz_f32_slowpath", kNoRows},
    {"apart.sm_120", "_Z4walkPfPid", 0xc20, 0x1430, "__cuda_sm20_div_rn_f64_full", kNoRows},
    {"apart.sm_120", "_Z4walkPfPid", 0x1430, 0x1b80, "__cuda_sm3x_div_rn_noftz_f32_slowpath",
     kNoRows},
    {"apart.sm_75", "_Z4growPfi", 0x670, 0xd80, "__cuda_sm3x_div_rn_noftz_f32_slowpath", kNoRows},
    {"apart.sm_75", "_Z4walkPfPid", 0x9c0, 0xfc0, "__cuda_sm20_div_rn_f64_full", kNoRows},
    {"apart.sm_75", "_Z4walkPfPid", 0xfc0, 0x1670, "__cuda_sm3x_div_rn_noftz_f32_slowpath",
     kNoRows},
    {"apart.sm_75", "_Z4walkPfPid", 0x1670, 0x1700, "__cuda_sm70_shflsync_bfly_p", kNoRows},
    {"apart.sm_80.cuda11", "_Z4growPfi", 0x640, 0xd80, "__cuda_sm3x_div_rn_noftz_f32_slowpath",
     kNoRows},
    {"apart.sm_80.cuda11", "_Z4walkPfPid", 0x9c0, 0xf30, "__cuda_sm20_div_f64_slowpath_v2",
     kNoRows},
    {"apart.sm_80.cuda11", "_Z4walkPfPid", 0xf30, 0x15c0, "__cuda_sm3x_div_rn_noftz_f32_slowpath",
     kNoRows},
    {"apart.sm_80.cuda11", "_Z4walkPfPid", 0x15c0, 0x1700, "__cuda_sm70_shflsync_bfly_p", kNoRows},
    {"equal_offsets.sm_80", "_Z10polynomialPffi", 0x270, 0x480, "__cuda_sm20_sqrt_rn_f32_slowpath",
     kNoRows},
    {"inline_chain.sm_100", "chain", 0x2300, 0x2a00, "__cuda_sm3x_div_rn_noftz_f32_slowpath",
     kNoRows},
    {"inline_chain.sm_120", "chain", 0x2310, 0x2a80, "__cuda_sm3x_div_rn_noftz_f32_slowpath",
     kNoRows},
    {"inline_chain.sm_75", "chain", 0x2780, 0x2e80, "__cuda_sm3x_div_rn_noftz_f32_slowpath",
     kNoRows},
    {"inline_chain.sm_80", "chain", 0x2770, 0x2f00, "__cuda_sm3x_div_rn_noftz_f32_slowpath",
     kNoRows},
    {"inline_chain.sm_90", "chain", 0x2780, 0x2e80, "__cuda_sm3x_div_rn_noftz_f32_slowpath",
     kNoRows},
    {"inline_chain.sm_90.cuda12", "chain", 0x2780, 0x2e80, "__cuda_sm3x_div_rn_noftz_f32_slowpath",
     kNoRows},
    {"long_name.sm_90", "_Z10many_types", 0x6a0, 0xd80, "__cuda_sm3x_div_rn_noftz_f32_slowpath",
     kNoRows},
    {"inline_chain.sm_75", "chain", 0x7e0, 0x7f0, kFromLine14, kNotPrinted},
    {"inline_chain.sm_75", "chain", 0x16d0, 0x17c0, kFromLine14, kNotPrinted},
    {"inline_chain.sm_80", "chain", 0x7e0, 0x7f0, kFromLine14, kNotPrinted},
    {"inline_chain.sm_80", "chain", 0x16d0, 0x17c0, kFromLine14, kNotPrinted},
    {"inline_chain.sm_90", "chain", 0x7f0, 0x800, kFromLine14, kNotPrinted},
    {"inline_chain.sm_90", "chain", 0x16e0, 0x17d0, kFromLine14, kNotPrinted},
    {"inline_chain.sm_90.cuda12", "chain", 0x7f0, 0x800, kFromLine14, kNotPrinted},
    {"inline_chain.sm_90.cuda12", "chain", 0x16e0, 0x17d0, kFromLine14, kNotPrinted},
    {"long_name.sm_90", "_Z8evaluateI7P", 0x1c0, 0x1e0,
     "long_name.cu:8 < long_name.cu:8 < long_name.cu:30", kNotPrinted},
};

struct Expected {
  std::string function;
  uint64_t from = 0;
  uint64_t to = 0;
  std::string chain;  // "file:line < file:line", "" if unknown
};

std::string with_paths(const std::string& chain, const std::map<std::string, std::string>& files) {
  if (chain == "-") return "";
  std::string text;
  std::istringstream parts(chain);
  for (std::string part; parts >> part;) {
    const size_t colon = part.find(':');
    text +=
        colon == std::string::npos ? " < " : files.at(part.substr(0, colon)) + part.substr(colon);
  }
  return text;
}

std::vector<Expected> read_oracles(const std::string& fixture) {
  std::vector<Expected> all;
  std::map<std::string, std::string> files;
  std::string function;
  std::ifstream stream(test::fixture_path(fixture + ".lines"));
  for (std::string line; std::getline(stream, line);) {
    std::istringstream words(line);
    std::string first;
    words >> first >> std::ws;
    std::string rest;
    std::getline(words, rest);
    if (first == "function") {
      function = rest;
    } else if (first == "file") {
      const size_t space = rest.find(' ');
      files[rest.substr(0, space)] = rest.substr(space + 1);
    } else {
      const size_t bar = rest.find(" | ");
      EXPECT_EQ(bar, std::string::npos) << fixture << ": the two tools disagree: " << line;
      all.push_back({function, std::stoull(first, nullptr, 16),
                     std::stoull(first.substr(first.find('-') + 1), nullptr, 16),
                     with_paths(rest, files)});
    }
  }
  return all;
}

// Frames without a file (the kernel above a device function that was not inlined) are not the
// tools'.
std::string lines_of(const Resolution& resolution) {
  std::string text;
  for (const SourceFrame& frame : resolution.frames) {
    if (frame.file.empty()) continue;
    text += (text.empty() ? "" : " < ") +
            std::filesystem::path(frame.file).lexically_normal().string() + ':' +
            std::to_string(frame.line);
  }
  return text;
}

std::vector<std::string> fixtures() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(CUBIN_FIXTURES)) {
    if (entry.path().extension() == ".cubin") names.push_back(entry.path().stem());
  }
  return names;
}

// Null if it is none of the known ones.
const Difference* find_difference(const std::string& fixture, const std::string& function,
                                  uint64_t pc) {
  for (const Difference& known : kDifferences) {
    if (fixture == known.fixture && function.starts_with(known.function) && pc >= known.from &&
        pc < known.to) {
      return &known;
    }
  }
  return nullptr;
}

class Oracles : public testing::Test {
 protected:
  void check(const std::string& fixture, const Image& image, const Expected& expected,
             uint64_t pc) {
    ++instructions_;
    const Resolution resolution = image.resolve(expected.function, pc);
    ASSERT_NE(resolution.status, SourceStatus::kUnmapped);
    const std::string lines = lines_of(resolution);
    EXPECT_EQ(lines.empty(), resolution.status == SourceStatus::kNoLineInfo);
    if (lines.find('<') != std::string::npos) ++chained_;
    if (lines == expected.chain) return;
    const Difference* const known = find_difference(fixture, expected.function, pc);
    ASSERT_NE(known, nullptr) << "\n  ours:   " << test::chain_text(resolution)
                              << "\n  theirs: " << expected.chain;
    ++differences_[known];
    if (known->reason == kNoRows) {
      EXPECT_EQ(lines, "");
      EXPECT_EQ(resolution.frames[0].mangled, known->ours);
    } else {
      EXPECT_EQ(without_directories(lines), known->ours);
      // The innermost line is not in question.
      EXPECT_EQ(lines.substr(0, lines.find(' ')),
                expected.chain.substr(0, expected.chain.find(' ')));
    }
  }

  static std::string without_directories(const std::string& lines) {
    return std::regex_replace(lines, std::regex("[^ ]*/"), "");
  }

  uint64_t instructions_ = 0;
  uint64_t chained_ = 0;
  std::map<const Difference*, uint64_t> differences_;
};

TEST_F(Oracles, EveryInstructionHasTheirLinesAndChains) {
  for (const std::string& fixture : fixtures()) {
    const auto image = test::fixture_image(fixture);
    ASSERT_TRUE(image) << fixture;
    uint64_t text_bytes = 0;
    for (const Expected& expected : read_oracles(fixture)) {
      text_bytes += expected.to - expected.from;
      for (uint64_t pc = expected.from; pc < expected.to; pc += kInstructionBytes) {
        SCOPED_TRACE(fixture + ' ' + expected.function + ' ' + std::to_string(pc));
        check(fixture, *image, expected, pc);
      }
    }
    // Every byte of every function that is not inside another one.
    uint64_t outer_bytes = 0;
    uint64_t end = 0;
    for (const Function& function : image->functions()) {
      const uint64_t function_end = function.address + function.size_bytes;
      if (function_end > end) outer_bytes += function_end - std::max(end, function.address);
      end = std::max(end, function_end);
    }
    EXPECT_EQ(text_bytes, outer_bytes) << fixture;
  }
  for (const Difference& known : kDifferences) {
    EXPECT_EQ(differences_[&known] * kInstructionBytes, known.to - known.from)
        << "fewer than the table says: " << known.fixture << ' ' << known.function << ' '
        << known.from;
  }
  EXPECT_GT(chained_, 4'000u);
  RecordProperty("instructions", std::to_string(instructions_));
}

}  // namespace
}  // namespace gpuprof::cubin

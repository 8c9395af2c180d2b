// SPDX-License-Identifier: Apache-2.0
//
// Every instruction of every fixture against what CUPTI and nvdisasm say
// (tests/data/cubin/oracles.py): its own function's lines, and those of the calls that lead there.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "daemon/cubin/image.h"
#include "tests/unit/cubin/fixture.h"
#include "tests/unit/cubin/listed_calls.h"

namespace gpuprof::cubin {
namespace {

constexpr uint64_t kInstructionBytes = 16;

// Where our chain is another one, all that there is. The listing prints a chain only where the
// innermost file and line change. Here they stay while the line that the code was inlined at
// changes, so it still shows the chain before. The table has a row for it, and the lines after it
// in the listing agree. In the last row the table gives one line two functions' names, so that its
// callers do not agree on that frame; the listing has no names.
struct Difference {
  const char* fixture;
  const char* function;  // begins so
  uint64_t from;
  uint64_t to;
  const char* ours;
};

constexpr char kFromLine14[] =
    "inline_chain.cu:6 < inline_chain.cu:14 < inline_chain.cu:18 < inline_chain.cu:28";

constexpr Difference kDifferences[] = {
    {"inline_chain.sm_75", "chain", 0x7e0, 0x7f0, kFromLine14},
    {"inline_chain.sm_75", "chain", 0x16d0, 0x17c0, kFromLine14},
    {"inline_chain.sm_80", "chain", 0x7e0, 0x7f0, kFromLine14},
    {"inline_chain.sm_80", "chain", 0x16d0, 0x17c0, kFromLine14},
    {"inline_chain.sm_90", "chain", 0x7f0, 0x800, kFromLine14},
    {"inline_chain.sm_90", "chain", 0x16e0, 0x17d0, kFromLine14},
    {"inline_chain.sm_90.cuda12", "chain", 0x7f0, 0x800, kFromLine14},
    {"inline_chain.sm_90.cuda12", "chain", 0x16e0, 0x17d0, kFromLine14},
    {"long_name.sm_90", "_Z8evaluateI7P", 0x1c0, 0x1e0,
     "long_name.cu:8 < long_name.cu:8 < long_name.cu:30"},
    {"apart.sm_75", "_Z4walkPfPid", 0x1670, 0x1700, "reduce.h:24 < reduce.h:37 < apart.cu:38"},
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

// Functions of ptxas' own have no rows. Both tools give them the last row before, which is another
// function's; we say nothing of their lines.
bool has_no_rows(const Function& function) {
  return function.mangled.find("__cuda_sm") != std::string_view::npos && !function.is_kernel;
}

using Lines = std::vector<std::string>;  // innermost first

Lines split(const std::string& chain) {
  Lines lines;
  std::istringstream words(chain);
  for (std::string word; words >> word;) {
    if (word != "<") lines.push_back(word);
  }
  return lines;
}

// A kernel's section in the tools' words.
class Section {
 public:
  Section(const Image& image, const std::string& kernel, const std::vector<Expected>& all,
          const std::vector<test::ListedCall>& calls)
      : calls_(calls) {
    const Function* const outer = image.find(kernel);
    for (const Function& function : image.functions()) {
      if (function.section == outer->section && !function.is_kernel && outer->is_kernel)
        functions_.push_back(function);
    }
    std::ranges::copy_if(all, std::back_inserter(expected_),
                         [&](const Expected& each) { return each.function == kernel; });
  }

  // Null: the kernel's own.
  [[nodiscard]] const Function* function_at(uint64_t pc) const {
    const auto at = std::ranges::find_if(functions_, [&](const Function& each) {
      return pc >= each.offset && pc < each.offset + each.size_bytes;
    });
    return at == functions_.end() ? nullptr : &*at;
  }

  [[nodiscard]] Lines own_lines(uint64_t pc) const {
    const Function* const function = function_at(pc);
    if (function != nullptr && has_no_rows(*function)) return {};
    const auto at = std::ranges::find_if(
        expected_, [&](const Expected& each) { return pc >= each.from && pc < each.to; });
    return at == expected_.end() ? Lines() : split(at->chain);
  }

  // The lines of the calls on each way from the kernel to a function that takes none twice.
  [[nodiscard]] std::set<Lines> ways_to(const Function* function,
                                        std::set<const Function*> taken = {}) const {
    if (function == nullptr || has_pointer(*function)) return {{}};
    taken.insert(function);
    std::set<Lines> ways;
    for (const test::ListedCall& call : calls_) {
      if (call.callee != function->mangled) continue;
      const Function* const caller = function_at(call.offset);
      if (taken.contains(caller)) continue;
      for (const Lines& above : ways_to(caller, taken)) {
        Lines way = own_lines(call.offset);
        way.insert(way.end(), above.begin(), above.end());
        ways.insert(way);
      }
    }
    return ways;
  }

 private:
  [[nodiscard]] bool has_pointer(const Function& function) const {
    return !function.mangled.starts_with("$__internal_") &&
           std::ranges::find(calls_, "*", &test::ListedCall::callee) != calls_.end();
  }

  const std::vector<test::ListedCall>& calls_;
  std::vector<Function> functions_;
  std::vector<Expected> expected_;
};

class Oracles : public testing::Test {
 protected:
  void check(const std::string& fixture, const Image& image, const Expected& expected,
             const Section& section, uint64_t pc) {
    ++instructions_;
    const Resolution resolution = image.resolve(expected.function, pc);
    ASSERT_NE(resolution.status, SourceStatus::kUnmapped);
    const std::string text = lines_of(resolution);
    EXPECT_EQ(text.empty(), resolution.status == SourceStatus::kNoLineInfo);
    Lines lines = split(text);
    if (lines.size() > 1) ++chained_;
    Lines theirs = section.own_lines(pc);
    const std::set<Lines> ways = section.ways_to(section.function_at(pc));
    if (ways.size() == 1) {
      theirs.insert(theirs.end(), ways.begin()->begin(), ways.begin()->end());
      if (section.function_at(pc) != nullptr && !ways.begin()->empty()) ++called_;
      if (lines != theirs) check_difference(fixture, expected, resolution, pc);
      return;
    }
    // None that is not on every way.
    ++called_by_many_;
    ASSERT_GE(lines.size(), theirs.size());
    EXPECT_TRUE(std::ranges::equal(theirs, std::span(lines).first(theirs.size())));
    lines.erase(lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(theirs.size()));
    EXPECT_FALSE(ways.empty()) << "nobody calls it";
    for (const Lines& way : ways) {
      auto at = way.begin();
      for (const std::string& line : lines) {
        at = std::find(at, way.end(), line);
        ASSERT_NE(at, way.end()) << test::chain_text(resolution);
        ++at;
      }
    }
  }

  void check_difference(const std::string& fixture, const Expected& expected,
                        const Resolution& resolution, uint64_t pc) {
    const std::string lines = lines_of(resolution);
    const Difference* const known = find_difference(fixture, expected.function, pc);
    ASSERT_NE(known, nullptr) << "\n  ours:   " << test::chain_text(resolution)
                              << "\n  theirs: " << expected.chain;
    ++differences_[known];
    EXPECT_EQ(std::regex_replace(lines, std::regex("[^ ]*/"), ""), known->ours);
    if (resolution.frames.front().file.empty()) return;
    // The innermost line is not in question.
    EXPECT_EQ(lines.substr(0, lines.find(' ')), expected.chain.substr(0, expected.chain.find(' ')));
  }

  uint64_t instructions_ = 0;
  uint64_t chained_ = 0;
  uint64_t called_ = 0;  // with lines from the one way that leads there
  uint64_t called_by_many_ = 0;
  std::map<const Difference*, uint64_t> differences_;
};

TEST_F(Oracles, EveryInstructionHasTheirLinesAndChains) {
  for (const std::string& fixture : test::fixtures()) {
    const auto image = test::fixture_image(fixture);
    ASSERT_TRUE(image) << fixture;
    const std::vector<Expected> all = read_oracles(fixture);
    auto calls = test::listed_calls(fixture);
    std::map<std::string, Section> sections;
    uint64_t text_bytes = 0;
    for (const Expected& expected : all) {
      const Section& section = sections
                                   .try_emplace(expected.function, *image, expected.function, all,
                                                calls[expected.function])
                                   .first->second;
      text_bytes += expected.to - expected.from;
      for (uint64_t pc = expected.from; pc < expected.to; pc += kInstructionBytes) {
        SCOPED_TRACE(fixture + ' ' + expected.function + ' ' + std::to_string(pc));
        check(fixture, *image, expected, section, pc);
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
  EXPECT_GT(chained_, 8'000u);
  EXPECT_GT(called_, 5'000u);
  EXPECT_GT(called_by_many_, 2'000u);
  RecordProperty("instructions", std::to_string(instructions_));
}

}  // namespace
}  // namespace gpuprof::cubin

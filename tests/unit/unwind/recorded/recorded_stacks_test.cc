// SPDX-License-Identifier: Apache-2.0
// The stacks of tests/data/stacks: ours are libdwfl's, and both from the recording alone what they
// were in the living process.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <string>

#include "tests/unit/unwind/recorded/recording.h"

namespace gpuprof::unwind::test {
namespace {

struct Expected {
  const char* name;
  size_t stacks;  // at least
  // All are the same in both, or libdwfl goes on from there by a frame pointer that is none.
  bool all_same;
  // How ours may end. musl's own functions have no call frame information, and those of Go's
  // runtime do not tell that the stack was changed between goroutine and C.
  const char* other_end;
  bool has_frame_pointers;  // frames of generated code
};

constexpr Expected kCorpus[] = {
    {"musl", 60, false, "no_cfi", false},
    {"musl-static", 60, false, "no_cfi", false},
    {"glibc-static", 60, true, "no_cfi", false},
    {"go", 60, false, "no_module", false},
    {"rust", 60, true, "", false},
    {"java", 60, true, "no_cfi", true},
    {"python-3.9", 10, true, "", false},
    {"python-3.10", 10, true, "", false},
    {"python-3.11", 10, true, "", false},
    {"python-3.12", 10, true, "", false},
    {"aarch64", 10, true, "", false},
    {"python-3.13", 10, true, "", false},
    {"python-3.14", 10, true, "", false},
};

class RecordedCallers : public testing::TestWithParam<Expected> {};

TEST_P(RecordedCallers, AreLibdwflsFrameByFrame) {
  const Expected& expected = GetParam();
  const Recording recording =
      read_recording(std::string(STACK_RECORDINGS "/") + expected.name + ".zst");
  EXPECT_GE(static_cast<size_t>(recording.stacks_size()), expected.stacks);
  RecordedProcess process(recording);
  size_t whole = 0, guided = 0;
  for (const Recording::Stack& stack : recording.stacks()) {
    SCOPED_TRACE(stack.pcs(0));
    const RawStack ours = process.ours(sample_of(stack));
    EXPECT_EQ(ours.pcs, std::vector<uint64_t>(stack.pcs().begin(), stack.pcs().end()));
    EXPECT_EQ(end_name(ours.end), stack.end());
    EXPECT_EQ(ours.by_frame_pointer, stack.by_frame_pointer());
    const auto theirs = process.libdwfl(sample_with_below(stack));
    EXPECT_EQ(theirs, std::vector<uint64_t>(stack.libdwfl().begin(), stack.libdwfl().end()));
    const Agreement agreement =
        compare(ours, theirs, [&](uint64_t pc) { return process.is_mapped(pc); });
    EXPECT_TRUE(agreement == Agreement::kSame ||
                (agreement == Agreement::kGarbage && !expected.all_same));
    EXPECT_TRUE(ours.end == StackEnd::kWhole || stack.end() == expected.other_end) << stack.end();
    whole += ours.end == StackEnd::kWhole;
    guided += ours.by_frame_pointer;
  }
  EXPECT_GT(whole, 0u);
  if (expected.has_frame_pointers) {
    EXPECT_GT(guided, 100u);
  }
}

// Return addresses of another machine come with signatures in their upper bits.
TEST(RecordedStacks, OfAarch64AreSigned) {
  const Recording recording = read_recording(STACK_RECORDINGS "/aarch64.zst");
  RecordedProcess process(recording);
  size_t signatures = 0;
  for (const Recording::Stack& stack : recording.stacks()) {
    for (size_t at = 0; at + 8 <= stack.bytes().size(); at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, stack.bytes().data() + at, 8);
      const uint64_t address = word & ((uint64_t{1} << 48) - 1);
      signatures += word != address && process.is_mapped(address);
    }
  }
  EXPECT_GE(signatures, 40u);
}

std::string name_of(const testing::TestParamInfo<Expected>& test) {
  std::string name = test.param.name;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); },
      '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Corpus, RecordedCallers, testing::ValuesIn(kCorpus), name_of);

}  // namespace
}  // namespace gpuprof::unwind::test

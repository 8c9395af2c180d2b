// SPDX-License-Identifier: Apache-2.0
#include "daemon/target/text.h"

#include <gtest/gtest.h>

#include <array>

namespace gpuprof::target {
namespace {

TEST(Printable, KeepsWellFormedText) {
  EXPECT_EQ(printable("no libcupti found: tried /usr/lib"), "no libcupti found: tried /usr/lib");
  EXPECT_EQ(printable("Größe \xe2\x82\xac \xf0\x9f\x98\x80"),
            "Größe \xe2\x82\xac \xf0\x9f\x98\x80");
}

TEST(Printable, ReplacesWhatMovesTheCursor) {
  EXPECT_EQ(printable("a\x1b[2Jb\nc\rd\x7f"), "a?[2Jb?c?d?");
  EXPECT_EQ(printable("a\xc2\x9b"
                      "2J"),
            "a?2J");  // C1 control sequence introducer
}

TEST(Printable, ReplacesInvalidUtf8) {
  EXPECT_EQ(printable("\xff\xc0\xaf"), "???");
  EXPECT_EQ(printable("\xed\xa0\x80"), "???");       // surrogate
  EXPECT_EQ(printable("\xe2\x82"), "??");            // cut short
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "????");  // above U+10FFFF
}

TEST(GpuUuid, IsWrittenAsNvidiaSmiDoes) {
  std::array<uint8_t, 16> uuid{};
  EXPECT_EQ(gpu_uuid(uuid), "") << "unknown";
  for (uint8_t i = 0; i < uuid.size(); ++i) uuid[i] = static_cast<uint8_t>(0xf0 + i);
  EXPECT_EQ(gpu_uuid(uuid), "GPU-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfeff");
}

TEST(Printable, StopsAtNulAndAtTheBound) {
  EXPECT_EQ(printable(std::string_view("ab\0cd", 5)), "ab");
  EXPECT_EQ(printable("abcdef", 3), "abc");
  EXPECT_EQ(printable("ab\xe2\x82\xac", 4), "ab");  // never half a character
}

}  // namespace
}  // namespace gpuprof::target

// SPDX-License-Identifier: Apache-2.0
#include "daemon/base/byte_reader.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace gpuprof {
namespace {

using Bytes = std::vector<uint8_t>;

ByteReader reader_of(const Bytes& bytes) { return ByteReader(std::as_bytes(std::span(bytes))); }

uint64_t uleb(const Bytes& bytes) { return reader_of(bytes).uleb(); }
int64_t sleb(const Bytes& bytes) { return reader_of(bytes).sleb(); }

Bytes repeated(uint8_t byte, size_t count, uint8_t last) {
  Bytes bytes(count, byte);
  bytes.push_back(last);
  return bytes;
}

// DWARF 5, figures 7.1 and 7.2, and the ends of the range.
TEST(ByteReader, LebValues) {
  EXPECT_EQ(uleb({2}), 2u);
  EXPECT_EQ(uleb({0x80, 1}), 128u);
  EXPECT_EQ(uleb({57 + 0x80, 100}), 12857u);
  EXPECT_EQ(uleb(repeated(0xff, 9, 1)), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(sleb({2}), 2);
  EXPECT_EQ(sleb({0x7e}), -2);
  EXPECT_EQ(sleb({0xff, 0}), 127);
  EXPECT_EQ(sleb({0x80, 0x7f}), -128);
  EXPECT_EQ(sleb(repeated(0x80, 9, 0x7f)), std::numeric_limits<int64_t>::min());
}

TEST(ByteReader, LebPaddedToItsBoundIsRead) {
  const Bytes bytes = repeated(0x80, ByteReader::kMaxLebBytes - 1, 0);
  ByteReader reader = reader_of(bytes);
  EXPECT_EQ(reader.uleb(), 0u);
  EXPECT_FALSE(reader.failed());
  EXPECT_TRUE(reader.done());
}

TEST(ByteReader, ALongerLebFails) {
  const Bytes bytes = repeated(0x81, ByteReader::kMaxLebBytes, 0);
  for (const bool is_signed : {false, true}) {
    ByteReader reader = reader_of(bytes);
    EXPECT_EQ(is_signed ? static_cast<uint64_t>(reader.sleb()) : reader.uleb(), 0u);
    EXPECT_TRUE(reader.failed());
    EXPECT_TRUE(reader.done());
  }
}

TEST(ByteReader, ALebWithoutItsEndFails) {
  const Bytes bytes(3, 0xff);
  for (const bool is_signed : {false, true}) {
    ByteReader reader = reader_of(bytes);
    EXPECT_EQ(is_signed ? static_cast<uint64_t>(reader.sleb()) : reader.uleb(), 0u);
    EXPECT_TRUE(reader.failed());
  }
}

TEST(ByteReader, PastTheEndNothingIsRead) {
  const Bytes bytes = {1, 2, 3};
  ByteReader reader = reader_of(bytes);
  reader.skip(1);
  EXPECT_EQ(reader.offset(), 1u);
  EXPECT_EQ(reader.fixed<uint16_t>(), 0x0302u);
  EXPECT_FALSE(reader.failed());
  EXPECT_EQ(reader.fixed<uint8_t>(), 0u);
  EXPECT_TRUE(reader.failed());
  EXPECT_TRUE(reader.string().empty());
  EXPECT_TRUE(reader.take(1).empty());
}

}  // namespace
}  // namespace gpuprof

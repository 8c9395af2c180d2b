// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "daemon/probe/name_assembler.h"
#include "daemon/probe/text.h"

namespace gpuprof::probe {
namespace {

constexpr ProcessId kProcess{10, 100};

std::vector<gpuprof_name_v1> chunks_of(const std::string& name, uint64_t id) {
  std::vector<gpuprof_name_v1> chunks;
  for (uint32_t offset = 0; offset < name.size(); offset += GPUPROF_NAME_CHUNK_BYTES) {
    gpuprof_name_v1 chunk{};
    chunk.id = id;
    chunk.kind = GPUPROF_NAME_FUNCTION;
    chunk.total_bytes = static_cast<uint32_t>(name.size());
    chunk.offset = offset;
    chunk.chunk_bytes = std::min<uint32_t>(GPUPROF_NAME_CHUNK_BYTES, name.size() - offset);
    std::memcpy(chunk.bytes, name.data() + offset, chunk.chunk_bytes);
    chunks.push_back(chunk);
  }
  return chunks;
}

std::string long_name(size_t bytes, char seed) {
  std::string name(bytes, ' ');
  for (size_t i = 0; i < bytes; i++) name[i] = static_cast<char>('a' + (seed + i * 7) % 26);
  return name;
}

TEST(NameAssembler, AnyOrderGivesTheName) {
  std::mt19937 random(3);
  for (const size_t bytes : {1u, 223u, 224u, 225u, 448u, 3000u, 16384u}) {
    const std::string name = long_name(bytes, 1);
    auto chunks = chunks_of(name, 5);
    std::shuffle(chunks.begin(), chunks.end(), random);
    NameAssembler names;
    for (size_t i = 0; i < chunks.size(); i++) {
      ASSERT_TRUE(is_valid(chunks[i]));
      const auto whole = names.add(kProcess, chunks[i]);
      ASSERT_EQ(whole.has_value(), i + 1 == chunks.size()) << bytes;
      if (whole) {
        EXPECT_EQ(*whole, name);
      }
    }
    EXPECT_EQ(names.given_up(), 0u);
  }
}

TEST(NameAssembler, ProcessesAndIdsDoNotMix) {
  NameAssembler names;
  const auto a = chunks_of(long_name(300, 1), 5);
  const auto b = chunks_of(long_name(300, 2), 6);
  EXPECT_FALSE(names.add(kProcess, a[0]));
  EXPECT_FALSE(names.add(kProcess, b[1]));
  EXPECT_FALSE(names.add({11, 100}, a[1]));
  EXPECT_EQ(names.add(kProcess, a[1]), long_name(300, 1));
  EXPECT_EQ(names.add(kProcess, b[0]), long_name(300, 2));
}

TEST(NameAssembler, RepeatsAndChangedLengths) {
  NameAssembler names;
  const auto chunks = chunks_of(long_name(300, 1), 5);
  EXPECT_FALSE(names.add(kProcess, chunks[0]));
  EXPECT_FALSE(names.add(kProcess, chunks[0]));
  EXPECT_TRUE(names.add(kProcess, chunks[1]));
  EXPECT_FALSE(names.add(kProcess, chunks[1]));  // replayed
  EXPECT_TRUE(names.add(kProcess, chunks[0]));
  EXPECT_FALSE(names.add(kProcess, chunks[0]));
  const auto other = chunks_of(long_name(301, 1), 5);
  EXPECT_FALSE(names.add(kProcess, other[1]));
  EXPECT_EQ(names.given_up(), 1u);
  EXPECT_TRUE(names.add(kProcess, other[0]));
}

TEST(NameAssembler, IsBounded) {
  NameAssembler names;
  for (uint64_t id = 0; id < 1000; id++) {
    EXPECT_FALSE(names.add(kProcess, chunks_of(long_name(300, 1), id)[0]));
  }
  EXPECT_EQ(names.given_up(), 1000u - NameAssembler::kMaxPartial);
  EXPECT_TRUE(names.add(kProcess, chunks_of(long_name(300, 1), 999)[1]));
  EXPECT_FALSE(names.add(kProcess, chunks_of(long_name(300, 1), 0)[1]));
  names.forget(kProcess);
  EXPECT_FALSE(names.add(kProcess, chunks_of(long_name(300, 1), 998)[1]));
}

TEST(NameAssembler, RefusesBadChunks) {
  const gpuprof_name_v1 good = chunks_of(long_name(300, 1), 5)[1];
  EXPECT_TRUE(is_valid(good));
  const auto with = [&](auto change) {
    gpuprof_name_v1 chunk = good;
    change(chunk);
    return is_valid(chunk);
  };
  EXPECT_FALSE(with([](auto& c) { c.kind = 0; }));
  EXPECT_FALSE(with([](auto& c) { c.kind = 3; }));
  EXPECT_FALSE(with([](auto& c) { c.total_bytes = 0; }));
  EXPECT_FALSE(with([](auto& c) { c.total_bytes = GPUPROF_NAME_MAX_BYTES + 1; }));
  EXPECT_FALSE(with([](auto& c) { c.offset = 225; }));
  EXPECT_FALSE(with([](auto& c) { c.offset = 448; }));
  EXPECT_FALSE(with([](auto& c) { c.offset = 0xffffff20; }));
  EXPECT_FALSE(with([](auto& c) { c.chunk_bytes = 75; }));
  EXPECT_FALSE(with([](auto& c) { c.chunk_bytes = 0; }));
  EXPECT_FALSE(with([](auto& c) { c.chunk_bytes = 0xffffffff; }));
}

TEST(Text, KeepsWhatIsFine) {
  for (const char* text : {"", "_Z3addPfi", "void k<int>(float*)", "käse", "日本語", "🙂"}) {
    EXPECT_EQ(sanitize(text), text);
  }
  EXPECT_TRUE(is_plain("_Z3addPfi ~"));
  EXPECT_FALSE(is_plain("k\xc3\xa4se"));
  EXPECT_FALSE(is_plain("\x1b[31m"));
}

TEST(Text, ReplacesControlsAndBrokenUtf8) {
  EXPECT_EQ(sanitize("a\nb\x1b[31mc\x7f"), "a?b?[31mc?");
  EXPECT_EQ(sanitize(std::string("a\0b", 3)), "a?b");
  EXPECT_EQ(sanitize("\xc2\x9b"
                     "x"),
            "?x");                                  // C1: CSI
  EXPECT_EQ(sanitize("\xc0\xaf"), "??");            // overlong
  EXPECT_EQ(sanitize("\xe0\x80\xaf"), "???");       // overlong
  EXPECT_EQ(sanitize("\xed\xa0\x80"), "???");       // surrogate
  EXPECT_EQ(sanitize("\xf4\x90\x80\x80"), "????");  // beyond Unicode
  EXPECT_EQ(sanitize("\xe6\x97"), "??");            // cut
  EXPECT_EQ(sanitize("\xff"
                     "a\x80"),
            "?a?");
}

}  // namespace
}  // namespace gpuprof::probe

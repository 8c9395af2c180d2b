// SPDX-License-Identifier: Apache-2.0
#include "daemon/python/evaluation.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <vector>

namespace gpuprof::python {
namespace {

#if defined(__x86_64__)

constexpr uint64_t kEntry = 0x500000, kEnd = 0x500100;

// Memory in pieces; counts the reads.
class Memory {
 public:
  void put(uint64_t at, std::vector<uint8_t> bytes) { pieces_[at] = std::move(bytes); }
  ReadMemory reader() {
    return [this](uint64_t address, std::span<uint8_t> out) -> size_t {
      ++reads;
      for (const auto& [at, bytes] : pieces_) {
        if (address < at || address + out.size() > at + bytes.size()) continue;
        std::memcpy(out.data(), bytes.data() + (address - at), out.size());
        return out.size();
      }
      return 0;
    };
  }
  int reads = 0;

 private:
  std::map<uint64_t, std::vector<uint8_t>> pieces_;
};

std::vector<uint8_t> with_displacement(std::vector<uint8_t> head, int32_t displacement,
                                       size_t padded = 0) {
  for (size_t i = 0; i < sizeof displacement; ++i)
    head.push_back(static_cast<uint8_t>(displacement >> (8 * i)));
  head.resize(std::max(head.size(), padded));
  return head;
}

std::vector<uint8_t> pointer(uint64_t value) {
  std::vector<uint8_t> out(8);
  std::memcpy(out.data(), &value, 8);
  return out;
}

TEST(Evaluation, ThePcLiesInTheFunction) {
  Memory memory;
  Evaluation evaluation(kEntry, kEnd, memory.reader());
  EXPECT_TRUE(evaluation.is_frame(kEntry + 5, 0, false));
  EXPECT_FALSE(evaluation.is_frame(kEnd, 0, false));
  EXPECT_EQ(memory.reads, 0);
}

TEST(Evaluation, TheCallerCallsIt) {
  Memory memory;
  // nop; call kEntry, which returns to 0x400006.
  memory.put(0x400000, with_displacement({0x90, 0xe8}, kEntry - 0x400006));
  // call *[rip + x] of a pointer at 0x600000.
  memory.put(0x400100, with_displacement({0xff, 0x15}, 0x600000 - 0x400106));
  memory.put(0x600000, pointer(kEntry));
  // call of a stub: endbr64; bnd jmp *[rip + x], of the same pointer.
  memory.put(0x400200, with_displacement({0x90, 0xe8}, 0x410000 - 0x400206));
  memory.put(0x410000, with_displacement({0xf3, 0x0f, 0x1e, 0xfa, 0xf2, 0xff, 0x25},
                                         0x600000 - 0x41000b, 16));
  // Another function's.
  memory.put(0x400300, with_displacement({0x90, 0xe8}, kEnd - 0x400306));
  memory.put(kEnd, std::vector<uint8_t>(16, 0x90));
  Evaluation evaluation(kEntry, kEnd, memory.reader());
  const uint64_t cold = 0x450000;
  EXPECT_TRUE(evaluation.is_frame(cold, 0x400005, false));
  EXPECT_TRUE(evaluation.is_frame(cold, 0x400105, false));
  EXPECT_TRUE(evaluation.is_frame(cold, 0x400205, false));
  EXPECT_FALSE(evaluation.is_frame(cold, 0x400305, false));
  EXPECT_FALSE(evaluation.is_frame(cold, 0x700000, false)) << "unreadable";
  const int reads = memory.reads;
  EXPECT_TRUE(evaluation.is_frame(cold + 1, 0x400205, false));
  EXPECT_EQ(memory.reads, reads) << "a call site is read once";
}

TEST(Evaluation, ATrampolineCallsIt) {
  Memory memory;
  memory.put(0x700000, {0x48, 0x83, 0xec, 0x08, 0xff, 0xd1, 0x48, 0x83, 0xc4, 0x08, 0xc3});
  memory.put(0x700100, {0x48, 0x83, 0xec, 0x08, 0xff, 0xd0});
  Evaluation evaluation(kEntry, kEnd, memory.reader());
  EXPECT_TRUE(evaluation.is_frame(0x450000, 0x700005, true));
  EXPECT_FALSE(evaluation.is_frame(0x450000, 0x700105, true));
}

#endif

}  // namespace
}  // namespace gpuprof::python

// SPDX-License-Identifier: Apache-2.0
#include "daemon/python/code_objects.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace gpuprof::python {
namespace {

constexpr uint64_t kBase = 0x100000;
constexpr uint64_t kType = kBase + 0x1000, kCode = kBase + 0x2000, kName = kBase + 0x3000,
                   kFile = kBase + 0x4000, kLines = kBase + 0x5000;
constexpr uint64_t kSecond = 1'000'000'000;

// The memory of a process with one code object of Python 3.12.
class Target {
 public:
  Target() : memory_(0x8000) {
    put(kType + 24, kType + 64);
    text(kType + 64, "code", 5);
    put(kCode, 3);  // references
    put(kCode + 8, kType);
    put32(kCode + 68, 17);    // co_firstlineno
    put32(kCode + 92, 5000);  // co_version
    put(kCode + 112, kFile);
    put(kCode + 128, kName);
    put(kCode + 136, kLines);
    ascii(kName, "Model.forward");
    ascii(kFile, "/srv/model.py");
    put(kLines + 16, 2);
    memory_[kLines + 32 - kBase] = 0x80 | 10 << 3;  // a unit of line +0, two columns
    memory_[kLines + 33 - kBase] = 0;
  }

  void put(uint64_t at, uint64_t value) { std::memcpy(at_(at), &value, sizeof value); }
  void put32(uint64_t at, uint32_t value) { std::memcpy(at_(at), &value, sizeof value); }
  void text(uint64_t at, const char* text, size_t bytes) { std::memcpy(at_(at), text, bytes); }
  void ascii(uint64_t at, const std::string& value) {
    put(at + 16, value.size());
    put32(at + 32, 1 << 2 | 0x20 | 0x40);
    text(at + 40, value.data(), value.size());
  }
  ReadMemory reader() {
    return [this](uint64_t address, std::span<uint8_t> out) -> size_t {
      ++reads;
      if (before_read) before_read(address);
      if (address < kBase || address - kBase + out.size() > memory_.size()) return 0;
      std::memcpy(out.data(), at_(address), out.size());
      return out.size();
    };
  }
  std::array<uint8_t, GPUPROF_PYTHON_CODE_BYTES> window() {
    std::array<uint8_t, GPUPROF_PYTHON_CODE_BYTES> out;
    std::memcpy(out.data(), at_(kCode + 68), out.size());
    return out;
  }

  int reads = 0;
  std::function<void(uint64_t)> before_read;

 private:
  uint8_t* at_(uint64_t address) { return memory_.data() + (address - kBase); }
  std::vector<uint8_t> memory_;
};

Layout layout_312() { return *layout_of(0x30c, 0, std::vector<uint8_t>(kRuntimeBytes)); }

TEST(CodeObjects, AreReadOnce) {
  Target target;
  CodeObjects codes(layout_312(), target.reader());
  const CodeObject* code = codes.find(kCode, target.window(), kSecond);
  ASSERT_NE(code, nullptr);
  EXPECT_EQ(code->function, "Model.forward");
  EXPECT_EQ(code->file, "/srv/model.py");
  EXPECT_EQ(code->first_line, 17);
  gpuprof_python_frame frame = {};
  frame.code = kCode;
  const uint64_t instruction = kCode + 192;
  std::memcpy(frame.frame_window + 56, &instruction, sizeof instruction);
  EXPECT_EQ(codes.line(*code, frame), 17u);
  const int reads = target.reads;
  EXPECT_EQ(codes.find(kCode, target.window(), kSecond), code);
  EXPECT_EQ(target.reads, reads);
}

TEST(CodeObjects, AnotherOneInItsPlaceIsNotTaken) {
  Target target;
  const auto launched = target.window();
  target.put32(kCode + 92, 5001);  // freed, and a new one of the same names put there
  CodeObjects codes(layout_312(), target.reader());
  EXPECT_EQ(codes.find(kCode, launched, kSecond), nullptr);
  ASSERT_NE(codes.find(kCode, target.window(), kSecond), nullptr);
  EXPECT_EQ(codes.find(kCode, launched, kSecond), nullptr) << "not the one that is kept either";
}

TEST(CodeObjects, ThatChangesWhileItIsReadIsNotTaken) {
  Target target;
  const auto launched = target.window();
  target.before_read = [&](uint64_t address) {
    if (address == kName) target.put32(kCode + 92, 5001);
  };
  CodeObjects codes(layout_312(), target.reader());
  EXPECT_EQ(codes.find(kCode, launched, kSecond), nullptr);
}

TEST(CodeObjects, ThatIsFreedWhileItIsReadIsNotTaken) {
  Target target;
  target.before_read = [&](uint64_t address) {
    if (address == kName) target.put(kCode, 0x7f1122334450);
  };
  CodeObjects codes(layout_312(), target.reader());
  EXPECT_EQ(codes.find(kCode, target.window(), kSecond), nullptr);
}

TEST(CodeObjects, ImmortalOnesAndFlagsAreLive) {
  for (const uint64_t count : {uint64_t{0xffffffff}, uint64_t{4} << 48 | 0xc0000000}) {
    Target target;
    target.put(kCode, count);
    CodeObjects codes(layout_312(), target.reader());
    EXPECT_NE(codes.find(kCode, target.window(), kSecond), nullptr);
  }
}

TEST(CodeObjects, WhatIsNoCodeObjectIsNotTaken) {
  for (const auto& spoil : std::vector<std::function<void(Target&)>>{
           [](Target& t) { t.text(kType + 64, "dict", 5); },
           [](Target& t) { t.put(kType + 24, 0); },
           [](Target& t) { t.put(kCode + 8, 0); },
           [](Target& t) { t.put(kCode, 0); },               // freed, the last block of its pool
           [](Target& t) { t.put(kCode, 0x7f1122334450); },  // freed, another free one follows
           [](Target& t) { t.put(kCode + 128, 0); },
           [](Target& t) { t.ascii(kName, ""); },
           [](Target& t) { t.put32(kName + 32, 3 << 2 | 0x20); },  // three bytes a character
           [](Target& t) { t.put32(kName + 32, 1 << 2); },         // not compact
           [](Target& t) { t.put(kLines + 16, uint64_t{1} << 62); },
           [](Target& t) { t.put(kLines + 16, CodeObjects::kMaxLineTable + 1); },
       }) {
    Target target;
    spoil(target);
    CodeObjects codes(layout_312(), target.reader());
    EXPECT_EQ(codes.find(kCode, target.window(), kSecond), nullptr);
  }
  Target target;
  CodeObjects codes(layout_312(), target.reader());
  EXPECT_EQ(codes.find(0, target.window(), kSecond), nullptr);
  EXPECT_EQ(codes.find(kBase - 8, target.window(), kSecond), nullptr);
}

// As 3.13 has it: one str is file, name and qualified name, and there is no first line.
TEST(CodeObjects, TheInterpretersOwnAroundInitIsTold) {
  Target target;
  const CodeObjects codes(layout_312(), target.reader());
  EXPECT_FALSE(codes.is_cleanup(target.window()));
  target.put(kCode + 112, kName);
  EXPECT_FALSE(codes.is_cleanup(target.window())) << "a program's, whose file is called so";
  target.put32(kCode + 68, 0);
  EXPECT_TRUE(codes.is_cleanup(target.window()));
  target.put(kCode + 112, kFile);
  EXPECT_FALSE(codes.is_cleanup(target.window()));
  const Layout old = *layout_of(0x30a, 0, std::vector<uint8_t>(kRuntimeBytes));
  EXPECT_FALSE(CodeObjects(old, target.reader())
                   .is_cleanup(std::array<uint8_t, GPUPROF_PYTHON_CODE_BYTES>{}));
}

TEST(CodeObjects, NamesAreUtf8WithoutControls) {
  Target target;
  const std::u16string wide = {u'f', 0xfc, 0x4e2d, 7, 0xd800};
  target.put(kName + 16, wide.size());
  target.put32(kName + 32, 2 << 2 | 0x20);
  target.text(kName + 56, reinterpret_cast<const char*>(wide.data()), wide.size() * 2);
  CodeObjects codes(layout_312(), target.reader());
  const CodeObject* code = codes.find(kCode, target.window(), kSecond);
  ASSERT_NE(code, nullptr);
  EXPECT_EQ(code->function, "f\u00fc\u4e2d??");
}

TEST(CodeObjects, LongNamesAreCut) {
  Target target;
  target.ascii(kName, std::string(3000, 'x'));
  CodeObjects codes(layout_312(), target.reader());
  const CodeObject* code = codes.find(kCode, target.window(), kSecond);
  ASSERT_NE(code, nullptr);
  EXPECT_EQ(code->function, std::string(CodeObjects::kMaxTextCharacters, 'x'));
}

TEST(CodeObjects, ReadsASecondAreBounded) {
  Target target;
  target.put(kCode + 8, 0);
  CodeObjects codes(layout_312(), target.reader());
  for (size_t i = 0; i < 2 * CodeObjects::kMaxReadsPerSecond; ++i)
    codes.find(kCode, target.window(), kSecond);
  EXPECT_LE(target.reads, static_cast<int>(3 * CodeObjects::kMaxReadsPerSecond));
  target.put(kCode + 8, kType);
  EXPECT_EQ(codes.find(kCode, target.window(), kSecond), nullptr);
  EXPECT_NE(codes.find(kCode, target.window(), 2 * kSecond), nullptr) << "in the next second";
}

}  // namespace
}  // namespace gpuprof::python

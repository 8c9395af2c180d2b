// SPDX-License-Identifier: Apache-2.0
#include "tools/elfgate/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/elfgate/fixture.h"
#include "tools/elfgate/json.h"
#include "tools/elfgate/read_facts.h"

namespace gpuprof::elfgate {
namespace {

using testing::HasSubstr;

const Violation kViolation{"needed", "needs \"a\"\n", "DT_NEEDED", "it breaks", "do not"};

TEST(Report, OneLineAViolation) {
  EXPECT_EQ(violation_line("dir/x.so", kViolation),
            "dir/x.so: needed: needs \"a\"\\x0a (DT_NEEDED): it breaks; mend: do not");
}

TEST(Report, JsonOfAViolation) {
  EXPECT_EQ(
      check_json("x.so", std::span(&kViolation, 1)),
      R"({"file":"x.so","violations":[{"check":"needed","what":"needs \"a\"\u000a","where":"DT_NEEDED",)"
      R"("why":"it breaks","mend":"do not"}]})");
  EXPECT_EQ(check_json("x.so", {}), R"({"file":"x.so","violations":[]})");
  EXPECT_EQ(error_json("x.so", "cut"), R"({"file":"x.so","error":"cut"})");
}

TEST(Report, JsonOfFacts) {
  const auto image = Fixture().add_dynamic_text("DT_RUNPATH", "/opt").set("FLAGS", "0x18").build();
  const auto elf = ElfImage::from_memory(image);
  const auto facts = read_facts(*elf);
  ASSERT_TRUE(facts) << facts.error();
  const std::string json = facts_json("x.so", *facts);
  EXPECT_THAT(
      json,
      HasSubstr(
          R"("soname":"libsmall.so.1","needed":["libc.so.6"],"filtees":[],"rpath":null,"runpath":"/opt")"));
  EXPECT_THAT(
      json,
      HasSubstr(
          R"({"file":"libc.so.6","name":"GLIBC_2.17","weak":false,"symbol_count":2,"strong_symbol_count":2,"symbols":["dlopen","__cxa_atexit"]})"));
  EXPECT_THAT(json,
              HasSubstr(R"("exports":[{"name":"start","binding":"global","type":"function"}])"));
  EXPECT_THAT(json, HasSubstr(R"("imports":["dlopen@GLIBC_2.17","__cxa_atexit@GLIBC_2.17"])"));
  EXPECT_THAT(json, HasSubstr(R"("static":true)"));
}

TEST(Report, NamesCannotForgeLinesOrColours) {
  EXPECT_EQ(printable("a\x1b[31m\nb\xff"), "a\\x1b[31m\\x0ab\\xff");
  EXPECT_EQ(printable(std::string(1000, 'a')).size(), 303U);
}

TEST(Report, JsonIsUtf8WhateverTheFileHolds) {
  const auto quoted = [](std::string_view text) { return Json().text(text).take(); };
  EXPECT_EQ(quoted("\xc3\xa9"), "\"\xc3\xa9\"");
  EXPECT_EQ(quoted("\xf0\x9f\x98\x80"), "\"\xf0\x9f\x98\x80\"");
  for (const char* bad :
       {"\xff", "\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe0\x80\x80"}) {
    EXPECT_THAT(quoted(bad), HasSubstr("\\ufffd")) << bad;
  }
}

}  // namespace
}  // namespace gpuprof::elfgate

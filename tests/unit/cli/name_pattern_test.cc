// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/name_pattern.h"

#include <gtest/gtest.h>
#include <stdlib.h>

namespace gpuprof::cli {
namespace {

constexpr time_t kWhen = 1'796'083'508;  // 2026-12-01T00:05:08Z

class NamePatternTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const char* zone = ::getenv("TZ")) zone_ = zone;
    set_zone("UTC");
  }
  void TearDown() override {
    zone_.empty() ? static_cast<void>(::unsetenv("TZ")) : set_zone(zone_.c_str());
    ::tzset();
  }
  static void set_zone(const char* zone) {
    ::setenv("TZ", zone, 1);
    ::tzset();
  }
  static std::string name(const std::string& text) {
    auto pattern = NamePattern::parse(text, "-o");
    EXPECT_TRUE(pattern.has_value()) << text;
    return pattern ? pattern->name_at(kWhen) : "";
  }
  static std::string trouble(const std::string& text) {
    auto pattern = NamePattern::parse(text, "-o");
    EXPECT_FALSE(pattern.has_value()) << text;
    if (pattern) return "";
    EXPECT_EQ(pattern.error().code, Code::kInvalidArgument);
    return pattern.error().message;
  }
  std::string zone_;
};

TEST_F(NamePatternTest, ConversionsOfTheLastPart) {
  auto pattern = NamePattern::parse("/var/lib/gpu-%Y%m%dT%H%M%S.pb.gz", "-o");
  ASSERT_TRUE(pattern.has_value());
  EXPECT_EQ(pattern->directory(), "/var/lib/");
  EXPECT_EQ(pattern->name_at(kWhen), "gpu-20261201T000508.pb.gz");
  EXPECT_TRUE(pattern->has_time());
  EXPECT_EQ(name("%s-%j-%F"), "1796083508-335-2026-12-01");
  EXPECT_EQ(name("%B"), "December");
}

TEST_F(NamePatternTest, EveryKnownConversionIsASafeName) {
  for (const char conversion : std::string("aAbBdFgGHIjmMpRsSTuUVwWyYz")) {
    const std::string made = name(std::string("x%") + conversion);
    EXPECT_GT(made.size(), 1u) << conversion;
    EXPECT_EQ(made.find_first_of("/ \n\t%"), std::string::npos) << made;
  }
}

TEST_F(NamePatternTest, PercentSigns) {
  EXPECT_EQ(name("100%%"), "100%");
  EXPECT_EQ(name("%%Y-%%%Y"), "%Y-%2026");
  auto pattern = NamePattern::parse("a%%b.pb.gz", "-o");
  ASSERT_TRUE(pattern.has_value());
  EXPECT_FALSE(pattern->has_time());
}

TEST_F(NamePatternTest, LocalTime) {
  set_zone("XYZ-2");  // POSIX: two hours east
  EXPECT_EQ(name("%H%z"), "02+0200");
}

TEST_F(NamePatternTest, WhatIsNoFileName) {
  for (const char* text :
       {"%D", "%x", "%c", "%n", "%t", "%e", "%Q", "%Ey", "%", "a%", "%-d", "%Z", "%%%"})
    EXPECT_NE(trouble(text).find("no conversion for a file name"), std::string::npos) << text;
  EXPECT_NE(trouble("%D").find("'%D'"), std::string::npos);
  EXPECT_NE(trouble("%Y/gpu.pb.gz").find("directory"), std::string::npos);
}

}  // namespace
}  // namespace gpuprof::cli

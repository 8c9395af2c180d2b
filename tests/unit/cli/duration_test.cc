// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/duration.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace gpuprof::cli {
namespace {

using namespace std::chrono_literals;

TEST(Duration, Parses) {
  EXPECT_EQ(*parse_duration("30s"), 30s);
  EXPECT_EQ(*parse_duration("2m"), 2min);
  EXPECT_EQ(*parse_duration("500ms"), 500ms);
  EXPECT_EQ(*parse_duration("1h"), 1h);
  EXPECT_EQ(*parse_duration("1.5s"), 1500ms);
  EXPECT_EQ(*parse_duration("10"), 10s);
}

TEST(Duration, Refuses) {
  for (const char* text : {"", "s", "0", "0s", "-1s", "1x", "1 s", "1s ", "s1", "nan", "inf",
                           "1e9s", "1e99", "99999999h", "+5s"})
    EXPECT_FALSE(parse_duration(text).has_value()) << text;
}

TEST(ExpandTime, StrftimeConversions) {
  ::setenv("TZ", "UTC", 1);
  ::tzset();
  EXPECT_EQ(*expand_time("gpu-%Y%m%dT%H%M%S.pb.gz", 1'700'000'000), "gpu-20231114T221320.pb.gz");
  EXPECT_EQ(*expand_time("100%%.pb.gz", 0), "100%.pb.gz");
  EXPECT_EQ(*expand_time("plain", 0), "plain");
  EXPECT_FALSE(expand_time("%" + std::string(5000, 'x'), 0).has_value());
}

TEST(HumanDuration, PicksItsUnit) {
  EXPECT_EQ(human_duration(3725s), "1h02m");
  EXPECT_EQ(human_duration(62s), "1m02s");
  EXPECT_EQ(human_duration(12345ms), "12.3 s");
  EXPECT_EQ(human_duration(12345us), "12.3 ms");
  EXPECT_EQ(human_duration(12345ns), "12.3 us");
}

}  // namespace
}  // namespace gpuprof::cli

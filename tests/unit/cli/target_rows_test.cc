// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/target_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace gpuprof::cli {
namespace {

std::vector<TargetRow> rows_of(size_t count) {
  std::vector<TargetRow> out(count);
  for (size_t i = 0; i < count; ++i) {
    out[i].check.pid = static_cast<uint32_t>(1000 + i);
    out[i].check.comm = "train";
    out[i].check.verdict = i % 2 == 0 ? Verdict::kProfiled : Verdict::kForked;
    out[i].check.text = "finding " + std::to_string(i);
  }
  return out;
}

size_t lines_of(const std::string& text) {
  return static_cast<size_t>(std::ranges::count(text, '\n'));
}

TEST(TargetTable, HasARowAProcessAndItsWarnings) {
  std::vector<TargetRow> rows = rows_of(2);
  rows[1].check.warnings = {"mind the gap"};
  EXPECT_EQ(target_table(rows, 0),
            "     PID  STATE         COMMAND          FINDING\n"
            "    1000  profiled      train            finding 0\n"
            "    1001  forked        train            finding 1\n"
            "                                         warning: mind the gap\n");
  EXPECT_EQ(target_table({}, 0), "");
}

TEST(TargetTable, CountsWhatItLeavesOut) {
  EXPECT_EQ(lines_of(target_table(rows_of(kMostTableRows), 0)), kMostTableRows + 1);
  const std::string more = target_table(rows_of(kMostTableRows + 5), 0);
  EXPECT_EQ(lines_of(more), kMostTableRows + 2);
  EXPECT_TRUE(more.ends_with("\n  5 more: 3 profiled, 2 forked (--summary-json)\n")) << more;
  EXPECT_TRUE(target_table(rows_of(1), 7).ends_with("\n  7 more (--summary-json)\n"));
}

TEST(WriteTargets, IsBoundedAndSaysSo) {
  JsonWriter json;
  json.begin_object();
  write_targets(json, rows_of(kMostJsonRows + 2), 3);
  json.end_object();
  const std::string text = json.take();
  EXPECT_NE(text.find("\"processes_left_out\": 5"), std::string::npos) << text.substr(0, 300);
  EXPECT_NE(text.find("finding " + std::to_string(kMostJsonRows - 1)), std::string::npos);
  EXPECT_EQ(text.find("finding " + std::to_string(kMostJsonRows)), std::string::npos);
}

}  // namespace
}  // namespace gpuprof::cli

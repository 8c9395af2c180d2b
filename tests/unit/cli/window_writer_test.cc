// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/window_writer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <map>

namespace gpuprof::cli {
namespace {

using What = WindowOutcome::What;

class WindowWriterTest : public testing::Test {
 protected:
  static FinishedWindow window(uint64_t index, bool has_profile = true) {
    FinishedWindow out;
    out.index = index;
    out.executions = 10 * index;
    out.gpu_time_ns = 100 * index;
    if (has_profile) out.model.emplace();
    out.profile_name = std::to_string(index) + ".pb.gz";
    out.summary = "{\n  \"profile\": \"\",\n  \"n\": " + std::to_string(index) + "\n}\n";
    out.summary_name = std::to_string(index) + ".json";
    return out;
  }
  // On the writer's thread.
  Result<std::string> write(WindowWriter::Series series, const std::string& name,
                            std::string_view bytes) {
    if (gate_.valid()) gate_.wait();
    if (series == WindowWriter::kProfiles && is_full_) return fail(Code::kIo, "full");
    if (series == WindowWriter::kSummaries && no_summaries_) return fail(Code::kIo, "no summaries");
    order_.push_back(name);
    files_[name] = bytes;
    return "/out/" + name;
  }
  // The outcomes of `count` windows, in the order of their coming.
  std::vector<WindowOutcome> collect(size_t count) {
    std::vector<WindowOutcome> out;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (out.size() < count && std::chrono::steady_clock::now() < deadline) {
      for (WindowOutcome& one : writer_.collect()) out.push_back(std::move(one));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(out.size(), count);
    return out;
  }

  std::atomic<bool> is_full_{false}, no_summaries_{false};
  std::shared_future<void> gate_;
  std::vector<std::string> order_;
  std::map<std::string, std::string> files_;
  WindowWriter writer_{[this](WindowWriter::Series series, const std::string& name,
                              std::string_view bytes) { return write(series, name, bytes); }};
};

TEST_F(WindowWriterTest, WritesInOrderAndNamesTheProfileInItsSummary) {
  writer_.add(window(1));
  writer_.add(window(2, false));
  const std::vector<WindowOutcome> outcomes = writer_.finish();
  ASSERT_EQ(outcomes.size(), 1u) << "an empty window has a summary only";
  EXPECT_EQ(outcomes[0].what, What::kWritten);
  EXPECT_EQ(outcomes[0].path, "/out/1.pb.gz");
  EXPECT_EQ(outcomes[0].executions, 10u);
  EXPECT_EQ(order_, (std::vector<std::string>{"1.pb.gz", "1.json", "2.json"}));
  EXPECT_EQ(files_["1.json"], "{\n  \"profile\": \"/out/1.pb.gz\",\n  \"n\": 1\n}\n");
  EXPECT_EQ(files_["2.json"], "{\n  \"profile\": \"\",\n  \"n\": 2\n}\n");
  EXPECT_EQ(files_["1.pb.gz"].substr(0, 2), "\x1f\x8b") << "gzip";
}

TEST_F(WindowWriterTest, NobodyWaitsForASlowDisk) {
  std::promise<void> open;
  gate_ = open.get_future().share();
  writer_.add(window(1));
  for (uint64_t i = 2; i <= 1 + WindowWriter::kMaxQueued; ++i) {
    while (writer_.full()) std::this_thread::yield();  // until the first one is taken
    writer_.add(window(i));
  }
  EXPECT_TRUE(writer_.full());
  EXPECT_TRUE(writer_.collect().empty());
  open.set_value();
  EXPECT_EQ(writer_.finish().size(), 1 + WindowWriter::kMaxQueued);
  EXPECT_FALSE(writer_.full());
}

TEST_F(WindowWriterTest, WhatCannotBeWrittenIsTriedAgain) {
  is_full_ = true;
  writer_.add(window(1));
  std::vector<WindowOutcome> outcomes = collect(1);
  EXPECT_EQ(outcomes[0].what, What::kWaiting);
  EXPECT_EQ(outcomes[0].error, "full");
  EXPECT_TRUE(files_.empty()) << "its summary waits with it";
  is_full_ = false;
  writer_.add(window(2));
  outcomes = collect(2);
  EXPECT_EQ(outcomes[0].what, What::kWrittenAtLast);
  EXPECT_EQ(outcomes[0].index, 1u);
  EXPECT_EQ(outcomes[1].what, What::kWritten);
  EXPECT_TRUE(writer_.finish().empty());
  EXPECT_EQ(order_, (std::vector<std::string>{"1.pb.gz", "1.json", "2.pb.gz", "2.json"}));
}

TEST_F(WindowWriterTest, TheOldestIsGivenUpAndTheRestAtTheEnd) {
  is_full_ = true;
  constexpr uint64_t kWindows = WindowWriter::kMaxWaiting + 3;
  for (uint64_t i = 1; i <= kWindows; ++i) {
    while (writer_.full()) std::this_thread::yield();
    writer_.add(window(i));
  }
  std::map<uint64_t, std::vector<What>> by_window;
  for (const WindowOutcome& one : writer_.finish()) by_window[one.index].push_back(one.what);
  ASSERT_EQ(by_window.size(), kWindows);
  for (const auto& [index, what] : by_window)
    EXPECT_EQ(what, (std::vector<What>{What::kWaiting, What::kUnwrittenAtLast})) << index;
  ASSERT_EQ(order_.size(), kWindows) << "the summaries are there";
  EXPECT_EQ(order_.front(), "1.json");
  EXPECT_EQ(files_["1.json"], "{\n  \"profile\": \"\",\n  \"n\": 1\n}\n");
}

TEST_F(WindowWriterTest, ASummaryThatCannotBeWrittenIsTold) {
  no_summaries_ = true;
  writer_.add(window(1));
  const std::vector<WindowOutcome> outcomes = writer_.finish();
  ASSERT_EQ(outcomes.size(), 2u);
  EXPECT_EQ(outcomes[0].what, What::kWritten);
  EXPECT_EQ(outcomes[1].what, What::kSummaryFailed);
  EXPECT_EQ(outcomes[1].error, "no summaries");
}

}  // namespace
}  // namespace gpuprof::cli

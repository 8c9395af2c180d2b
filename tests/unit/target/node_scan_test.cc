// SPDX-License-Identifier: Apache-2.0
#include "daemon/target/node_scan.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>

namespace gpuprof::target {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;

class NodeScanTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "node_scan_" +
            testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void begin(const char* name) const { std::filesystem::create_directory(root_ + "/" + name); }
  void end(const char* name) const { std::filesystem::remove(root_ + "/" + name); }
  // Whose turn it is, after a listing if one is due.
  std::multiset<uint32_t> turns(uint64_t now_ns) {
    EXPECT_TRUE(scan().list(now_ns));
    std::multiset<uint32_t> out;
    while (const auto pid = scan().next(now_ns)) out.insert(*pid);
    return out;
  }
  NodeScan& scan() {
    if (!scan_) scan_.emplace(root_);
    return *scan_;
  }

 private:
  std::string root_;
  std::optional<NodeScan> scan_;
};

using Pids = std::multiset<uint32_t>;

TEST_F(NodeScanTest, ProcessesAreNumbersAndNewOnesComeAtTheNextListing) {
  for (const char* name : {"1", "27", "self", "12a", "4294967296", "-3", "sys"}) begin(name);
  EXPECT_EQ(turns(kSecond), (Pids{1, 27}));
  EXPECT_EQ(turns(kSecond), Pids{}) << "once";
  begin("300");
  EXPECT_EQ(turns(kSecond + NodeScan::kListNs / 2), Pids{}) << "no listing yet";
  EXPECT_TRUE(turns(kSecond + NodeScan::kListNs).contains(300));
  EXPECT_EQ(scan().processes(), 3u);
}

TEST_F(NodeScanTest, TurnsBecomeRareButNeverEnd) {
  begin("5");
  size_t first_minute = 0, later = 0;
  for (uint64_t at = 0; at < 600; ++at) {  // ten minutes
    const size_t seen = turns(kSecond + at * kSecond).size();
    (at < 60 ? first_minute : later) += seen;
  }
  EXPECT_GE(first_minute, 6u);
  EXPECT_LE(first_minute, 9u);
  EXPECT_NEAR(static_cast<double>(later), 540.0 / 30, 1.0);
}

TEST_F(NodeScanTest, OneThatIsGoneHasNoTurnAndItsNumberIsNewAgain) {
  begin("5");
  for (uint64_t at = 1; at < 100; ++at) turns(at * kSecond);
  end("5");
  turns(100 * kSecond);
  EXPECT_EQ(scan().processes(), 0u);
  EXPECT_EQ(turns(200 * kSecond), Pids{});
  begin("5");
  EXPECT_EQ(turns(201 * kSecond), Pids{5}) << "at once, not when the turn of the old one was due";
  EXPECT_EQ(turns(202 * kSecond), Pids{5});
}

TEST_F(NodeScanTest, LookAgainMovesTheTurnAndTakesInTheUnlisted) {
  begin("5");
  EXPECT_EQ(turns(kSecond), Pids{5});
  scan().look_again(5, kSecond + 100);
  scan().look_again(7, kSecond + 100);  // told of before it was listed
  begin("7");
  EXPECT_EQ(turns(kSecond + 99), Pids{});
  EXPECT_EQ(turns(kSecond + 100), (Pids{5, 7}));
  EXPECT_EQ(turns(kSecond + 101), Pids{}) << "the turn it had before is void";
}

TEST_F(NodeScanTest, NoProcIsTold) {
  NodeScan nowhere("/nonexistent/proc");
  EXPECT_FALSE(nowhere.list(kSecond));
}

}  // namespace
}  // namespace gpuprof::target

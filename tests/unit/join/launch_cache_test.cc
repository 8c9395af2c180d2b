// SPDX-License-Identifier: Apache-2.0
#include "daemon/join/launch_cache.h"

#include <gtest/gtest.h>

namespace gpuprof::join {
namespace {

Launch* put(LaunchCache& cache, uint64_t key, uint64_t now_ns, bool executed, bool is_graph) {
  Launch* launch = cache.insert(key);
  launch->last_use_ns = now_ns;
  launch->executed = executed;
  launch->is_graph = is_graph;
  launch->stack = static_cast<StackId>(key);
  return launch;
}

TEST(LaunchCache, AgesByKindAndByLastUse) {
  LaunchCache cache;
  LaunchCacheCounts counts;
  put(cache, 1, 0, true, false);
  put(cache, 2, 0, true, true);
  put(cache, 3, 0, false, false);
  put(cache, 4, 95, false, false);
  cache.expire(10, 100, 10, counts);
  EXPECT_EQ(cache.find(1), nullptr);
  EXPECT_NE(cache.find(2), nullptr);
  EXPECT_NE(cache.find(3), nullptr);
  cache.expire(100, 100, 10, counts);
  EXPECT_EQ(cache.find(2), nullptr);
  EXPECT_EQ(cache.find(3), nullptr);
  EXPECT_NE(cache.find(4), nullptr);
  EXPECT_EQ(counts.retired, 2u);
  EXPECT_EQ(counts.never_executed, 1u);
  EXPECT_EQ(counts.evicted, 0u);
}

TEST(LaunchCache, ClockBehindALaunchKeepsIt) {
  LaunchCache cache;
  LaunchCacheCounts counts;
  put(cache, 1, 1000, false, false);
  cache.expire(10, 100, 10, counts);
  EXPECT_EQ(cache.size(), 1u);
}

TEST(LaunchCache, RoomComesFromExecutedLaunchesFirstThenFromTheOldest) {
  LaunchCache cache;
  LaunchCacheCounts counts;
  for (uint64_t key = 1; key <= 10; ++key) put(cache, key, key, key % 2 == 0, false);
  cache.make_room(5, counts);
  EXPECT_EQ(cache.size(), 5u);
  EXPECT_EQ(counts.retired, 5u);
  EXPECT_EQ(counts.evicted, 0u);
  cache.make_room(3, counts);
  EXPECT_EQ(counts.evicted, 2u);
  EXPECT_EQ(cache.find(1), nullptr);
  EXPECT_EQ(cache.find(3), nullptr);
  EXPECT_NE(cache.find(5), nullptr);
}

TEST(LaunchCache, InsertRefusesAKnownKey) {
  LaunchCache cache;
  EXPECT_NE(cache.insert(1), nullptr);
  EXPECT_EQ(cache.insert(1), nullptr);
}

}  // namespace
}  // namespace gpuprof::join

// SPDX-License-Identifier: Apache-2.0
#include "daemon/join/flat_index.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace gpuprof::join {
namespace {

using Index = FlatIndex<uint64_t, int>;

TEST(FlatIndex, AgreesWithAMap) {
  std::mt19937_64 random(1);
  Index index;
  std::map<uint64_t, int> map;
  for (int step = 0; step < 200'000; ++step) {
    const uint64_t key = random() % 5000;
    if (step % 20'000 == 19'999) {
      const uint64_t cut = random() % 5000;
      index.retain([&](const Index::Entry& entry) { return entry.key < cut; });
      std::erase_if(map, [&](const auto& entry) { return entry.first >= cut; });
      ASSERT_EQ(index.size(), map.size());
    }
    const auto [at, is_new] = index.insert(key);
    const auto [in_map, is_new_in_map] = map.try_emplace(key, 0);
    ASSERT_EQ(is_new, is_new_in_map);
    ASSERT_EQ(index[at].value, in_map->second);
    index[at].value = in_map->second = step;
  }
  for (uint64_t key = 0; key < 5000; ++key) {
    const uint32_t at = index.find(key);
    ASSERT_EQ(at != Index::kNone, map.contains(key));
    if (at != Index::kNone) {
      ASSERT_EQ(index[at].value, map.at(key));
    }
  }
}

TEST(FlatIndex, EntriesKeepTheirOrderWhateverTheSeed) {
  for (const uint64_t seed : {1u, 2u, 3u}) {
    FlatIndex<uint64_t, int> index(seed);
    for (uint64_t key = 1000; key > 0; --key) index.insert(key);
    index.retain([](const auto& entry) { return entry.key % 3 == 0; });
    uint64_t expected = 999;
    for (const auto& entry : index.entries()) {
      ASSERT_EQ(entry.key, expected);
      expected -= 3;
    }
  }
}

TEST(FlatIndex, EmptyAndClearedFindNothing) {
  Index index;
  EXPECT_EQ(index.find(0), Index::kNone);
  index.insert(0);
  EXPECT_NE(index.find(0), Index::kNone);
  index.clear();
  EXPECT_EQ(index.find(0), Index::kNone);
  EXPECT_EQ(index.size(), 0u);
}

}  // namespace
}  // namespace gpuprof::join

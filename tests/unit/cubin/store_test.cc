// SPDX-License-Identifier: Apache-2.0
#include "daemon/cubin/store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "tests/unit/cubin/fixture.h"

namespace gpuprof::cubin {
namespace {

using test::fixture_bytes;

std::string put(Store& store, std::span<const std::byte> bytes, size_t chunk = 4096,
                uint64_t owner = 0, bool named = true) {
  Store::Writer writer(store);
  for (size_t at = 0; at < bytes.size(); at += chunk)
    EXPECT_TRUE(writer.add(bytes.subspan(at, std::min(chunk, bytes.size() - at))).has_value());
  auto hash = writer.finish(owner, named);
  EXPECT_TRUE(hash.has_value()) << hash.error().message;
  return hash.value_or("");
}

// Incompressible, so that sizes in the store are known.
std::vector<std::byte> noise(size_t bytes, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> out(bytes);
  for (std::byte& byte : out) byte = static_cast<std::byte>(random());
  return out;
}

TEST(Store, KeyIsTheSha256) {
  Store store;
  const std::string_view text = "abc";  // FIPS 180-2, appendix B.1
  const auto bytes = std::as_bytes(std::span(text));
  constexpr const char* kAbc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
  EXPECT_EQ(sha256_hex(bytes), kAbc);
  EXPECT_EQ(put(store, bytes, 1), kAbc);
}

TEST(Store, GivesBackWhatWasPutWhateverTheChunks) {
  Store store;
  const std::vector<std::byte> image = fixture_bytes("inline_chain.sm_90.cubin");
  const std::string one = put(store, image, image.size());
  EXPECT_EQ(put(store, image, 7), one);
  EXPECT_EQ(one, sha256_hex(image));
  EXPECT_EQ(store.stats().images, 1u) << "the same image of two processes is kept once";
  EXPECT_EQ(store.stats().raw_bytes, image.size());
  EXPECT_LT(store.stats().bytes, image.size() / 2) << "compressed";
  auto back = store.bytes(one);
  ASSERT_TRUE(back.has_value()) << back.error().message;
  EXPECT_EQ(*back, image);
  EXPECT_EQ(store.bytes(std::string(64, '0')).error().code, Code::kNotFound);
}

TEST(Store, WriterRestarts) {
  Store store;
  Store::Writer writer(store);
  const std::vector<std::byte> wrong = noise(1 << 20, 1), right = noise(5000, 2);
  ASSERT_TRUE(writer.add(wrong).has_value());
  writer.restart();
  ASSERT_TRUE(writer.add(right).has_value());
  auto hash = writer.finish();
  ASSERT_TRUE(hash.has_value());
  EXPECT_EQ(*hash, sha256_hex(right));
  EXPECT_EQ(*store.bytes(*hash), right);
}

TEST(Store, ParsesOnce) {
  Store store;
  const std::string hash = put(store, fixture_bytes("inline_chain.sm_90.cubin"));
  auto first = store.image(hash);
  ASSERT_TRUE(first.has_value()) << first.error().message;
  EXPECT_EQ((*first)->sm(), 90u);
  EXPECT_EQ(store.image(hash)->get(), first->get());
  EXPECT_GE(store.stats().parsed_bytes, (*first)->bytes().size());
}

TEST(Store, WhatIsNoCubinIsSaidSoEachTimeAndCountedOnce) {
  Store store;
  const std::string hash = put(store, noise(4096, 3));
  const auto first = store.image(hash);
  ASSERT_FALSE(first.has_value());
  EXPECT_NE(first.error().code, Code::kNotFound);
  EXPECT_EQ(store.image(hash).error().message, first.error().message);
  EXPECT_EQ(store.stats().malformed, 1u);
}

TEST(Store, LeastRecentlyUsedGoesFirst) {
  StoreLimits limits;
  limits.max_bytes = 35'000;
  Store store(limits);
  const std::string a = put(store, noise(10'000, 1));
  const std::string b = put(store, noise(10'000, 2));
  const std::string c = put(store, noise(10'000, 3));
  ASSERT_TRUE(store.bytes(a).has_value());  // now b is the oldest
  const std::string d = put(store, noise(10'000, 4));
  EXPECT_EQ(store.bytes(b).error().code, Code::kNotFound);
  for (const std::string& hash : {a, c, d}) EXPECT_TRUE(store.bytes(hash).has_value());
  EXPECT_EQ(store.stats().evicted, 1u);
  EXPECT_LE(store.stats().bytes, limits.max_bytes);
}

bool has(Store& store, const std::string& hash) { return store.bytes(hash).has_value(); }

TEST(Store, AFloodEvictsItsOwn) {
  StoreLimits limits;
  limits.max_bytes = 100'000;
  Store store(limits);
  // One before the flood began, one after.
  std::vector<std::string> quiet = {put(store, noise(10'000, 1), 4096, 1, true),
                                    put(store, noise(10'000, 2), 4096, 1, false)};
  std::string last = put(store, noise(10'000, 100), 4096, 2);
  quiet.push_back(put(store, noise(10'000, 3), 4096, 3, true));
  quiet.push_back(put(store, noise(10'000, 4), 4096, 3, false));
  for (uint32_t i = 1; i < 100; ++i) last = put(store, noise(10'000, 100 + i), 4096, 2);
  for (const std::string& hash : quiet) EXPECT_TRUE(has(store, hash)) << "within an equal share";
  EXPECT_TRUE(has(store, last));
  EXPECT_LE(store.stats().bytes, limits.max_bytes);
  EXPECT_GE(store.stats().evicted, 90u);
}

TEST(Store, UnnamedImagesOfWhoeverHasMoreThanAShareGoFirst) {
  StoreLimits limits;
  limits.max_bytes = 100'000;
  Store store(limits);
  std::vector<std::string> most;
  for (uint32_t i = 0; i < 5; ++i) most.push_back(put(store, noise(10'000, i), 4096, 1));
  const std::string unnamed = put(store, noise(10'000, 10), 4096, 2, false);
  for (uint32_t i = 0; i < 3; ++i) (void)put(store, noise(9'000, 20 + i), 4096, 2);
  const std::string small = put(store, noise(5'000, 30), 4096, 3, false);
  const std::string newest = put(store, noise(10'000, 31), 4096, 3, false);
  EXPECT_FALSE(has(store, unnamed));
  for (const std::string& hash : most) EXPECT_TRUE(has(store, hash));
  EXPECT_TRUE(has(store, small)) << "within an equal share";
  EXPECT_TRUE(has(store, newest));
}

TEST(Store, WhatNoSampleNamedGoesFirst) {
  StoreLimits limits;
  limits.max_bytes = 55'000;
  Store store(limits);
  const std::string named = put(store, noise(10'000, 1), 4096, 1, true);
  const std::string later = put(store, noise(10'000, 2), 4096, 1, false);
  store.name(later, 1);
  store.name(later, 7);  // not its owner: nothing
  const std::string unnamed = put(store, noise(10'000, 3), 4096, 1, false);
  for (uint32_t i = 0; i < 3; ++i) (void)put(store, noise(10'000, 10 + i), 4096, 1, true);
  EXPECT_TRUE(has(store, named));
  EXPECT_TRUE(has(store, later));
  EXPECT_FALSE(has(store, unnamed));
}

TEST(Store, WhoIsForgottenOwnsNothing) {
  Store store;
  const std::string shared = put(store, noise(10'000, 1), 4096, 1, true);
  EXPECT_EQ(put(store, noise(10'000, 1), 4096, 2, false), shared);
  const std::string own = put(store, noise(10'000, 2), 4096, 1, true);
  const std::string unnamed = put(store, noise(10'000, 3), 4096, 1, false);
  store.forget(1);
  EXPECT_TRUE(store.bytes(shared).has_value()) << "another one has it";
  EXPECT_FALSE(store.bytes(own).has_value());
  EXPECT_FALSE(store.bytes(unnamed).has_value());
  EXPECT_EQ(store.stats().images, 1u);
  EXPECT_EQ(store.stats().evicted, 0u);
  store.forget(2);
  store.forget(3);
  EXPECT_EQ(store.stats().images, 0u);
  EXPECT_EQ(store.stats().bytes, 0u);
}

TEST(Store, ASharedImageStaysWhileAnyOwnerHasIt) {
  StoreLimits limits;
  limits.max_bytes = 55'000;
  Store store(limits);
  const std::string shared = put(store, noise(10'000, 1), 4096, 1);
  EXPECT_EQ(put(store, noise(10'000, 1), 4096, 2), shared);
  for (uint32_t i = 0; i < 20; ++i) (void)put(store, noise(10'000, 10 + i), 4096, 2);
  EXPECT_TRUE(has(store, shared)) << "the first owner's";
  for (uint32_t i = 0; i < 20; ++i) (void)put(store, noise(10'000, 50 + i), 4096, 1);
  EXPECT_FALSE(has(store, shared));
  EXPECT_LE(store.stats().bytes, limits.max_bytes);
}

TEST(Store, TooLargeForTheStoreIsRefusedWhileItComes) {
  StoreLimits limits;
  limits.max_bytes = 100'000;
  Store store(limits);
  const std::string small = put(store, noise(1000, 1));
  Store::Writer writer(store);
  const std::vector<std::byte> chunk = noise(1 << 20, 2);
  Status added;
  for (int i = 0; i < 4 && added; ++i) added = writer.add(chunk);
  ASSERT_FALSE(added.has_value());
  EXPECT_EQ(added.error().code, Code::kUnavailable);
  EXPECT_TRUE(store.bytes(small).has_value()) << "and costs the others nothing";
}

TEST(Store, ParsedImagesAreBounded) {
  StoreLimits limits;
  limits.max_parsed_bytes = 1;  // room for none but the newest
  Store store(limits);
  const std::string a = put(store, fixture_bytes("inline_chain.sm_90.cubin"));
  const std::string b = put(store, fixture_bytes("inline_chain.sm_80.cubin"));
  const std::weak_ptr<const Image> first = *store.image(a);
  EXPECT_FALSE(first.expired()) << "the one in use stays";
  const uint64_t one = store.stats().parsed_bytes;
  auto second = store.image(b);
  ASSERT_TRUE(second.has_value());
  EXPECT_TRUE(first.expired());
  EXPECT_LT(store.stats().parsed_bytes, 2 * one);
  EXPECT_EQ((*store.image(a))->sm(), 90u) << "parsed again";
  EXPECT_EQ((*second)->sm(), 80u) << "and who holds one keeps it";
}

TEST(Store, ParsedImagesAreReleasedAndParsedAgain) {
  Store store;
  const std::string a = put(store, fixture_bytes("inline_chain.sm_90.cubin"));
  const std::weak_ptr<const Image> image = *store.image(a);
  EXPECT_GT(store.stats().parsed_bytes, 0u);
  store.release_parsed();
  EXPECT_TRUE(image.expired());
  EXPECT_EQ(store.stats().parsed_bytes, 0u);
  EXPECT_EQ((*store.image(a))->sm(), 90u);
  EXPECT_EQ(store.stats().parsed, 2u);
}

TEST(Store, ManyThreads) {
  StoreLimits limits;
  limits.max_bytes = 60'000;
  limits.max_parsed_bytes = 200'000;
  Store store(limits);
  const std::vector<std::byte> image = fixture_bytes("inline_chain.sm_90.cubin");
  std::vector<std::jthread> threads;
  for (uint32_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (uint32_t i = 0; i < 50; ++i) {
        (void)put(store, noise(5000, thread * 1000 + i));
        const std::string hash = put(store, image);
        auto parsed = store.image(hash);  // or evicted by a neighbour
        EXPECT_TRUE(!parsed || (*parsed)->sm() == 90u);
      }
    });
  }
  threads.clear();
  EXPECT_LE(store.stats().bytes, limits.max_bytes);
}

}  // namespace
}  // namespace gpuprof::cubin

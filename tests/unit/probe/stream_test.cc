// SPDX-License-Identifier: Apache-2.0
#include "daemon/probe/stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace gpuprof::probe {
namespace {

using Verdict = Stream::Verdict;

HeldBatch batch(uint64_t seq, uint32_t count, int64_t now_ns) {
  HeldBatch held;
  held.header.seq = seq;
  held.header.count = count;
  held.arrived_ns = now_ns;
  return held;
}

TEST(Stream, StartsAnywhereAndRunsOn) {
  Stream stream;
  EXPECT_EQ(stream.accept(1'000, 10, 0), Verdict::kDeliver);
  EXPECT_EQ(stream.accept(1'010, 1, 0), Verdict::kDeliver);
  EXPECT_EQ(stream.next(), 1'011u);
  EXPECT_FALSE(stream.has_gaps());
  EXPECT_EQ(stream.close_gap(1 << 30), 0u);
}

TEST(Stream, ALateArrivalWithinTheWindowIsNoLoss) {
  Stream stream;
  EXPECT_EQ(stream.accept(0, 4, 0), Verdict::kDeliver);
  EXPECT_EQ(stream.accept(8, 4, 10), Verdict::kHold);
  stream.hold(batch(8, 4, 10));
  EXPECT_FALSE(stream.pop());
  EXPECT_EQ(stream.close_gap(9), 0u);  // not due
  EXPECT_EQ(stream.accept(4, 4, 11), Verdict::kDeliver);
  const auto popped = stream.pop();
  ASSERT_TRUE(popped);
  EXPECT_EQ(popped->header.seq, 8u);
  EXPECT_EQ(stream.next(), 12u);
  EXPECT_EQ(stream.close_gap(1000), 0u);
}

TEST(Stream, AGapCountsRecordsNotBatches) {
  Stream stream;
  EXPECT_EQ(stream.accept(0, 256, 0), Verdict::kDeliver);
  EXPECT_EQ(stream.accept(1'000, 7, 5), Verdict::kHold);
  stream.hold(batch(1'000, 7, 5));
  EXPECT_EQ(stream.accept(2'000, 1, 6), Verdict::kHold);
  stream.hold(batch(2'000, 1, 6));
  EXPECT_EQ(stream.close_gap(5), 1'000u - 256);
  EXPECT_TRUE(stream.pop());
  EXPECT_FALSE(stream.pop());
  EXPECT_EQ(stream.close_gap(5), 0u);  // the second gap is younger
  EXPECT_EQ(stream.close_gap(6), 2'000u - 1'007);
  EXPECT_TRUE(stream.pop());
  // What belongs to a closed gap is late, not a duplicate; what was delivered is one.
  EXPECT_EQ(stream.accept(300, 50, 7), Verdict::kLate);
  EXPECT_EQ(stream.accept(1'000, 7, 7), Verdict::kDuplicate);
  EXPECT_EQ(stream.accept(0, 256, 7), Verdict::kDuplicate);
}

TEST(Stream, DuplicatesOfHeldBatches) {
  Stream stream;
  EXPECT_EQ(stream.accept(0, 1, 0), Verdict::kDeliver);
  EXPECT_EQ(stream.accept(5, 3, 0), Verdict::kHold);
  stream.hold(batch(5, 3, 0));
  EXPECT_EQ(stream.accept(5, 3, 0), Verdict::kDuplicate);
  EXPECT_EQ(stream.accept(4, 2, 0), Verdict::kMalformed);  // overlaps
  EXPECT_EQ(stream.accept(7, 2, 0), Verdict::kMalformed);
  EXPECT_EQ(stream.accept(1, 9, 0), Verdict::kMalformed);
  EXPECT_EQ(stream.accept(1, 4, 0), Verdict::kDeliver);
}

TEST(Stream, WhatComesFromBeforeTheOriginIsTakenForAWhile) {
  Stream stream;
  EXPECT_EQ(stream.accept(512, 256, 0), Verdict::kDeliver);
  EXPECT_EQ(stream.accept(0, 256, 1), Verdict::kDeliver);  // its thread was preempted
  EXPECT_EQ(stream.accept(0, 256, 1), Verdict::kDuplicate);
  EXPECT_TRUE(stream.has_gaps());
  // [256, 512) was emitted after 0 was, hence while attached, and never came.
  EXPECT_EQ(stream.close_gap(10), 256u);
  EXPECT_EQ(stream.accept(256, 256, 11), Verdict::kLate);
  EXPECT_EQ(stream.accept(768, 1, 11), Verdict::kDeliver);
}

TEST(Stream, AbsurdNumbersAreRefused) {
  Stream stream;
  EXPECT_EQ(stream.accept(~0ull, 1, 0), Verdict::kMalformed);
  EXPECT_EQ(stream.accept(0, 0, 0), Verdict::kMalformed);
  EXPECT_EQ(stream.accept(0, 1, 0), Verdict::kDeliver);
  EXPECT_EQ(stream.accept(2 + Stream::kMaxGap, 1, 0), Verdict::kMalformed);
  EXPECT_EQ(stream.accept(0, 2, 0), Verdict::kMalformed);  // reaches over what is next
  EXPECT_EQ(stream.next(), 1u);
}

// Any order within the window, any losses: delivered + lost is what was emitted between the first
// and the last record that arrived, and each batch is delivered once.
TEST(Stream, RandomOrderAndLossConserve) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 300; round++) {
    struct Sent {
      uint64_t seq;
      uint32_t count;
    };
    std::vector<Sent> sent;
    uint64_t seq = random() % 1000;
    for (int i = 0; i < 200; i++) {
      const uint32_t count = 1 + random() % 256;
      if (random() % 10 != 0 || i == 0) sent.push_back({seq, count});
      seq += count;
    }
    const uint64_t span = sent.back().seq + sent.back().count - sent.front().seq;
    for (size_t i = 0; i + 8 < sent.size(); i += 8) {
      std::shuffle(sent.begin() + i, sent.begin() + i + 8, random);
    }
    Stream stream;
    uint64_t delivered = 0;
    uint64_t lost = 0;
    int64_t now_ns = 0;
    const auto pop_all = [&] {
      while (const auto held = stream.pop()) delivered += held->header.count;
    };
    for (const Sent& s : sent) {
      now_ns++;
      const Verdict verdict = stream.accept(s.seq, s.count, now_ns);
      if (verdict == Verdict::kHold) {
        stream.hold(batch(s.seq, s.count, now_ns));
      } else {
        ASSERT_EQ(verdict, Verdict::kDeliver);
        delivered += s.count;
        pop_all();
      }
      while (const uint64_t n = stream.close_gap(now_ns - 20)) {
        lost += n;
        pop_all();
      }
    }
    while (const uint64_t n = stream.close_gap(now_ns)) {
      lost += n;
      pop_all();
    }
    uint64_t arrived = 0;
    for (const Sent& s : sent) arrived += s.count;
    EXPECT_EQ(delivered, arrived);
    EXPECT_EQ(delivered + lost, span);
  }
}

}  // namespace
}  // namespace gpuprof::probe

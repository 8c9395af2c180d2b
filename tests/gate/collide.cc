// SPDX-License-Identifier: Apache-2.0
//
// collide A B PADDING_OFFSET OUT: writes B into OUT with 1,024 of its bytes changed so that XXH3-64
// of it is that of A. XXH3 is no defence against a hostile neighbour: this is one.
//
// A and B are as long, equal behind the last kilobyte-aligned block that lies in B's padding, and
// more than 240 bytes. Of that block of 16 stripes the first two carry the solution: a lane's
// product is (low 32 of value ^ secret) times (high 32): with 1 below it adds what it has above to
// the lane, with 0 it adds nothing; the value itself goes to the lane's neighbour (XXH3's
// specification, long inputs). So the first stripe sets the low halves of all lanes, the second the
// high ones.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

constexpr size_t kLanes = 8, kStripe = 64, kBlock = 1024, kStripes = kBlock / kStripe;
constexpr uint64_t kLow = UINT32_MAX;
using Lanes = std::array<uint64_t, kLanes>;
using Bytes = std::vector<unsigned char>;

uint64_t word(const unsigned char* at) {
  uint64_t value;
  memcpy(&value, at, sizeof value);
  return value;
}

uint64_t secret(size_t stripe, size_t lane) { return word(XXH3_kSecret + 8 * stripe + 8 * lane); }

void accumulate(Lanes& lanes, const unsigned char* stripe, size_t number) {
  for (size_t i = 0; i < kLanes; ++i) {
    const uint64_t value = word(stripe + 8 * i), keyed = value ^ secret(number, i);
    lanes[i ^ 1] += value;
    lanes[i] += (keyed & kLow) * (keyed >> 32);
  }
}

void scramble(Lanes& lanes) {
  for (size_t i = 0; i < kLanes; ++i) {
    lanes[i] ^= lanes[i] >> 47;
    lanes[i] ^= word(XXH3_kSecret + 192 - kStripe + 8 * i);
    lanes[i] *= XXH_PRIME32_1;
  }
}

/// The lanes before the scramble of block `last`.
Lanes lanes_at(const Bytes& bytes, size_t last) {
  Lanes lanes = {XXH_PRIME32_3, XXH_PRIME64_1, XXH_PRIME64_2, XXH_PRIME64_3,
                 XXH_PRIME64_4, XXH_PRIME32_2, XXH_PRIME64_5, XXH_PRIME32_1};
  for (size_t block = 0; block <= last; ++block) {
    for (size_t i = 0; i < kStripes; ++i)
      accumulate(lanes, &bytes[block * kBlock + i * kStripe], i);
    if (block != last) scramble(lanes);
  }
  return lanes;
}

void put(Bytes& bytes, size_t block, size_t stripe, size_t lane, uint64_t keyed) {
  const uint64_t value = keyed ^ secret(stripe, lane);
  memcpy(&bytes[block * kBlock + stripe * kStripe + 8 * lane], &value, sizeof value);
}

void solve(const Bytes& a, Bytes& b, size_t block) {
  const Lanes wanted = lanes_at(a, block);
  for (size_t lane = 0; lane < kLanes; ++lane) {
    put(b, block, 0, lane, 1);  // a product of 0, and its own low half
    put(b, block, 1, lane, 0);
  }
  Lanes have = lanes_at(b, block);
  for (size_t lane = 0; lane < kLanes; ++lane)
    put(b, block, 0, lane, (wanted[lane] - have[lane]) << 32 | 1);
  have = lanes_at(b, block);
  for (size_t lane = 0; lane < kLanes; ++lane) {
    const size_t by = lane ^ 1;  // whose value goes to this lane
    const uint64_t key = secret(1, by), value = key + (wanted[lane] - have[lane]);
    put(b, block, 1, by, value ^ key);
  }
}

Bytes read(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    fprintf(stderr, "usage: collide A B PADDING_OFFSET OUT\n");
    return 2;
  }
  const Bytes a = read(argv[1]);
  Bytes b = read(argv[2]);
  const size_t block = (strtoull(argv[3], nullptr, 0) + kBlock - 1) / kBlock;
  if (a.size() != b.size() || (block + 1) * kBlock + kStripe > a.size() ||
      memcmp(&a[(block + 1) * kBlock], &b[(block + 1) * kBlock], a.size() - (block + 1) * kBlock) !=
          0) {
    fprintf(stderr, "collide: the files do not end alike behind block %zu\n", block);
    return 2;
  }
  solve(a, b, block);
  if (XXH3_64bits(a.data(), a.size()) != XXH3_64bits(b.data(), b.size()) || a == b) {
    fprintf(stderr, "collide: no collision\n");
    return 1;
  }
  std::ofstream(argv[4], std::ios::binary)
      .write(reinterpret_cast<const char*>(b.data()), static_cast<std::streamsize>(b.size()));
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
#include "daemon/target/module_reader.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "daemon/target/process.h"

namespace gpuprof::target {
namespace {

ProcessId self() { return *process_id(static_cast<uint32_t>(::getpid())); }

std::vector<std::byte> noise(size_t bytes, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> out(bytes);
  for (std::byte& byte : out) byte = static_cast<std::byte>(random());
  return out;
}

uint64_t key_of(std::span<const std::byte> image) {
  return XXH3_64bits(image.data(), image.size());
}

class Collector final : public ImageSink {
 public:
  void restart() override { bytes.clear(); }
  bool add(std::span<const std::byte> piece) override {
    largest = std::max(largest, piece.size());
    bytes.insert(bytes.end(), piece.begin(), piece.end());
    if (on_piece) on_piece();
    return bytes.size() <= limit;
  }
  std::vector<std::byte> bytes;
  size_t largest = 0;
  size_t limit = SIZE_MAX;
  std::function<void()> on_piece;
};

// The memfd as a target would keep it, and our reader's view of it.
class ModuleReaderTest : public testing::Test {
 protected:
  static constexpr off_t kCopies =
      GPUPROF_MODULES_OFFSET + off_t{GPUPROF_MODULE_CAPACITY} * sizeof(gpuprof_module_entry);

  ModuleReaderTest() : memfd_(::memfd_create(GPUPROF_MEMFD_NAME, MFD_CLOEXEC)) {
    EXPECT_EQ(::ftruncate(memfd_.get(), kCopies + (1 << 20)), 0);
  }

  void claim(uint32_t count) {
    EXPECT_EQ(
        ::pwrite(memfd_.get(), &count, sizeof count, offsetof(gpuprof_status_page, module_count)),
        ssize_t{sizeof count});
  }
  void set(uint32_t index, const gpuprof_module_entry& entry) {
    EXPECT_EQ(::pwrite(memfd_.get(), &entry, sizeof entry,
                       GPUPROF_MODULES_OFFSET + off_t{index} * sizeof entry),
              ssize_t{sizeof entry});
    if (index >= claimed_) claim(claimed_ = index + 1);
  }
  uint64_t copy(std::span<const std::byte> image, off_t at = 0) {
    EXPECT_EQ(::pwrite(memfd_.get(), image.data(), image.size(), kCopies + at),
              static_cast<ssize_t>(image.size()));
    return static_cast<uint64_t>(kCopies + at);
  }
  static gpuprof_module_entry in_memory(std::span<const std::byte> image) {
    gpuprof_module_entry entry = {};
    entry.hash = key_of(image);
    entry.address = reinterpret_cast<uintptr_t>(image.data());
    entry.size_bytes = image.size();
    entry.state = GPUPROF_MODULE_PRESENT;
    return entry;
  }
  gpuprof_module_entry copied(std::span<const std::byte> image, off_t at = 0) {
    gpuprof_module_entry entry = in_memory(image);
    entry.address = 0;
    entry.copy_offset = copy(image, at);
    entry.state = GPUPROF_MODULE_COPIED;
    return entry;
  }
  ModuleReader reader(ProcessId process = self(), const ModuleLimits& limits = {}) {
    return ModuleReader(UniqueFd(::dup(memfd_.get())), process, limits);
  }
  ModuleFailure read(uint64_t key, const ModuleLimits& limits = {}) {
    ModuleReader one = reader(self(), limits);
    return one.read(key, sink_);
  }

  UniqueFd memfd_;
  uint32_t claimed_ = 0;
  Collector sink_;
};

TEST_F(ModuleReaderTest, ReadsAnImageWhereItLies) {
  const std::vector<std::byte> image = noise(3 * ModuleReader::kPieceBytes + 17, 1);
  set(0, in_memory(noise(100, 2)));
  set(1, in_memory(image));
  EXPECT_EQ(read(key_of(image)), ModuleFailure::kNone);
  EXPECT_EQ(sink_.bytes, image);
  EXPECT_LE(sink_.largest, ModuleReader::kPieceBytes) << "never the whole image in memory";
  EXPECT_TRUE(reader().lies_in_process_only(key_of(image)));
}

TEST_F(ModuleReaderTest, ReadsACopy) {
  const std::vector<std::byte> image = noise(60'000, 1);
  set(0, copied(image, 4096));
  EXPECT_FALSE(reader().lies_in_process_only(key_of(image)));
  EXPECT_EQ(read(key_of(image)), ModuleFailure::kNone);
  EXPECT_EQ(sink_.bytes, image);
}

TEST_F(ModuleReaderTest, CopiesOutliveTheProcessAndMemoryDoesNot) {
  const std::vector<std::byte> small = noise(1000, 1), large = noise(100'000, 2);
  set(0, copied(small));
  set(1, in_memory(large));
  ModuleReader one = reader();
  one.process_gone();
  EXPECT_EQ(one.read(key_of(small), sink_), ModuleFailure::kNone);
  EXPECT_EQ(one.read(key_of(large), sink_), ModuleFailure::kGone);
}

TEST_F(ModuleReaderTest, AnExitedProcessIsGone) {
  const std::vector<std::byte> image = noise(1000, 1);
  set(0, in_memory(image));
  const pid_t child = ::fork();
  if (child == 0) ::pause();
  const ProcessId id = *process_id(static_cast<uint32_t>(child));
  ModuleReader one = reader(id);
  EXPECT_EQ(one.read(key_of(image), sink_), ModuleFailure::kNone) << "the child's own memory";
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(one.read(key_of(image), sink_), ModuleFailure::kGone);
  // The number belongs to another process by now: ours stands in for it.
  ProcessId reused = self();
  reused.start_ticks -= 1;
  EXPECT_EQ(reader(reused).read(key_of(image), sink_), ModuleFailure::kGone)
      << "and nothing of that one is handed out";
}

TEST_F(ModuleReaderTest, WhatIsNotInTheTableIsForeign) {
  set(0, in_memory(noise(100, 1)));
  EXPECT_EQ(read(0x1234), ModuleFailure::kForeignKey);
  claim(0);
  EXPECT_EQ(read(0x1234), ModuleFailure::kForeignKey);
}

TEST_F(ModuleReaderTest, AnEntryThatIsBeingWrittenIsNotThereYet) {
  const std::vector<std::byte> image = noise(100, 1);
  gpuprof_module_entry entry = in_memory(image);
  for (const uint32_t state : {uint32_t{GPUPROF_MODULE_EMPTY}, 4u, 77u, UINT32_MAX}) {
    entry.state = state;
    set(0, entry);
    EXPECT_EQ(read(entry.hash), ModuleFailure::kForeignKey) << state;
  }
}

TEST_F(ModuleReaderTest, WrongBytesAreNeverHandedOut) {
  const std::vector<std::byte> image = noise(5000, 1), other = noise(5000, 2);
  gpuprof_module_entry entry = in_memory(other);
  entry.hash = key_of(image);
  set(0, entry);
  EXPECT_EQ(read(entry.hash), ModuleFailure::kHashMismatch);
  entry = copied(other);
  entry.hash = key_of(image);
  set(0, entry);
  EXPECT_EQ(read(entry.hash), ModuleFailure::kHashMismatch);
  entry = in_memory(image);
  entry.size_bytes -= 1;
  set(0, entry);
  EXPECT_EQ(read(entry.hash), ModuleFailure::kHashMismatch);
}

TEST_F(ModuleReaderTest, ASecondContextsEntryServesWhereTheFirstIsGone) {
  const std::vector<std::byte> image = noise(200'000, 1);
  gpuprof_module_entry stale = in_memory(image);
  stale.address = 0x1000;  // never mapped
  stale.state = GPUPROF_MODULE_GONE;
  set(0, in_memory(image));
  set(1, stale);
  stale.state = GPUPROF_MODULE_PRESENT;
  set(2, stale);
  EXPECT_EQ(read(stale.hash), ModuleFailure::kNone);
  EXPECT_EQ(sink_.bytes, image) << "nothing of the failed tries is left in it";
}

TEST_F(ModuleReaderTest, ImpossibleSizesAndPlaces) {
  const std::vector<std::byte> image = noise(1000, 1);
  const uint64_t key = key_of(image);
  struct Case {
    uint64_t address, size, copy_offset;
    uint32_t state;
    ModuleFailure expected;
  };
  const auto place = reinterpret_cast<uintptr_t>(image.data());
  const auto file_end = static_cast<uint64_t>(kCopies) + (1 << 20);
  const Case cases[] = {
      {place, 0, 0, GPUPROF_MODULE_PRESENT, ModuleFailure::kHashMismatch},
      {place, 1ull << 63, 0, GPUPROF_MODULE_PRESENT, ModuleFailure::kTooLarge},
      {place, UINT64_MAX, 0, GPUPROF_MODULE_PRESENT, ModuleFailure::kTooLarge},
      {0, 1000, 0, GPUPROF_MODULE_PRESENT, ModuleFailure::kUnreadable},
      {0x1000, 1000, 0, GPUPROF_MODULE_PRESENT, ModuleFailure::kUnreadable},
      {UINT64_MAX - 10, 1000, 0, GPUPROF_MODULE_PRESENT, ModuleFailure::kUnreadable},
      {0xffffffff80000000, 1000, 0, GPUPROF_MODULE_PRESENT, ModuleFailure::kUnreadable},
      {0x1000, 1000, 0, GPUPROF_MODULE_GONE, ModuleFailure::kGone},
      {place, 1000, 0, GPUPROF_MODULE_COPIED, ModuleFailure::kUnreadable},
      {place, 1000, 1, GPUPROF_MODULE_COPIED, ModuleFailure::kUnreadable},
      {place, 1000, file_end, GPUPROF_MODULE_COPIED, ModuleFailure::kUnreadable},
      {place, 1000, file_end - 999, GPUPROF_MODULE_COPIED, ModuleFailure::kUnreadable},
      {place, 1000, 1ull << 63, GPUPROF_MODULE_COPIED, ModuleFailure::kUnreadable},
      {place, 1000, UINT64_MAX - 5, GPUPROF_MODULE_COPIED, ModuleFailure::kUnreadable},
      {place, 1ull << 40, file_end - 1000, GPUPROF_MODULE_COPIED, ModuleFailure::kTooLarge},
      {place, 1000, GPUPROF_MODULES_OFFSET, GPUPROF_MODULE_COPIED, ModuleFailure::kHashMismatch},
  };
  for (const Case& one : cases) {
    gpuprof_module_entry entry = {};
    entry.hash = key;
    entry.address = one.address;
    entry.size_bytes = one.size;
    entry.copy_offset = one.copy_offset;
    entry.state = one.state;
    set(0, entry);
    EXPECT_EQ(read(key), one.expected)
        << std::hex << one.address << " " << one.size << " " << one.copy_offset << " " << one.state;
  }
}

TEST_F(ModuleReaderTest, AClaimBeyondTheTableAndAFileThatEndsInIt) {
  const std::vector<std::byte> image = noise(1000, 1);
  set(GPUPROF_MODULE_CAPACITY - 1, in_memory(image));
  claim(UINT32_MAX);
  EXPECT_EQ(read(key_of(image)), ModuleFailure::kNone) << "the last entry that can be";
  ASSERT_EQ(::ftruncate(memfd_.get(), kCopies - 10), 0);
  EXPECT_EQ(read(key_of(image)), ModuleFailure::kForeignKey);
  ASSERT_EQ(::ftruncate(memfd_.get(), 100), 0);
  EXPECT_EQ(read(key_of(image)), ModuleFailure::kForeignKey);
}

TEST_F(ModuleReaderTest, Limits) {
  const std::vector<std::byte> image = noise(1'000'000, 1);
  set(0, in_memory(image));
  const uint64_t key = key_of(image);
  EXPECT_EQ(read(key, {.max_image_bytes = 999'999}), ModuleFailure::kTooLarge);
  ModuleReader one = reader(self(), {.max_total_bytes = 2'500'000});
  EXPECT_EQ(one.read(key, sink_), ModuleFailure::kNone);
  EXPECT_EQ(one.read(key, sink_), ModuleFailure::kNone);
  EXPECT_EQ(one.read(key, sink_), ModuleFailure::kOverBudget) << "2.5 MB of this process in all";
  EXPECT_LE(one.bytes_read(), 2'500'000u);
  sink_.limit = 500'000;
  EXPECT_EQ(read(key), ModuleFailure::kTooLarge) << "the sink has no room";
}

TEST_F(ModuleReaderTest, KeysThatAreAskedForTogetherShareATable) {
  const std::vector<std::byte> image = noise(100, 1);
  gpuprof_module_entry entry = in_memory(image);
  const uint64_t key = entry.hash;
  for (uint32_t i = 0; i < 4000; ++i) {
    set(i, entry);
    entry.hash = i + 1;
  }
  ModuleReader one = reader();
  for (uint64_t other = 1; other < 4000; ++other) {
    EXPECT_TRUE(one.lies_in_process_only(other));
    EXPECT_EQ(one.read(other, sink_), ModuleFailure::kHashMismatch);
  }
  EXPECT_LT(one.table_reads(), 1000u) << "one for 50 ms, not one for each of 8,000 questions";
  EXPECT_EQ(one.read(key, sink_), ModuleFailure::kNone);
  entry.hash = 5000;
  set(4000, entry);  // a claim more: seen at once
  EXPECT_EQ(one.read(5000, sink_), ModuleFailure::kHashMismatch);
  entry.state = GPUPROF_MODULE_EMPTY;
  set(4000, entry);
  EXPECT_EQ(one.read(5000, sink_), ModuleFailure::kForeignKey) << "states are not kept";
}

TEST_F(ModuleReaderTest, AReadHasABudgetOfItsOwn) {
  const std::vector<std::byte> image = noise(1'000'000, 1);
  set(0, in_memory(image));
  ModuleReader one = reader();
  EXPECT_EQ(one.read(key_of(image), sink_, 999'999), ModuleFailure::kOverBudget);
  EXPECT_EQ(one.bytes_read(), 0u) << "whatever was announced, the table says what it costs";
  EXPECT_EQ(one.read(key_of(image), sink_, 1'000'000), ModuleFailure::kNone);
  EXPECT_EQ(one.read(key_of(image), sink_), ModuleFailure::kNone);
}

TEST_F(ModuleReaderTest, ATableFullOfOneHashCostsEightTries) {
  const std::vector<std::byte> other = noise(10'000, 2);
  gpuprof_module_entry entry = in_memory(other);
  entry.hash = 42;
  for (uint32_t i = 0; i < 2000; ++i) set(i, entry);
  ModuleReader one = reader();
  EXPECT_EQ(one.read(42, sink_), ModuleFailure::kHashMismatch);
  EXPECT_LE(one.bytes_read(), 8u * other.size());
}

TEST_F(ModuleReaderTest, AnImageThatChangesWhileItIsReadIsNotHandedOut) {
  std::vector<std::byte> image = noise(4 * ModuleReader::kPieceBytes, 1);
  set(0, in_memory(image));
  const uint64_t key = key_of(image);
  sink_.on_piece = [&] { image.back() ^= std::byte{1}; };  // an even number of times: 4 pieces
  EXPECT_EQ(read(key), ModuleFailure::kHashMismatch) << "the last piece was read changed";
}

// Every field of every entry changes all the time; whatever read() says is true of what it read.
TEST_F(ModuleReaderTest, ATableThatChangesWhileItIsRead) {
  const std::vector<std::byte> image = noise(50'000, 1);
  const uint64_t key = key_of(image);
  const uint64_t at = copy(image);
  std::atomic<bool> stop{false};
  std::jthread writer([&] {
    std::mt19937_64 random(7);
    const uint64_t sizes[] = {image.size(), 0, 1, UINT64_MAX, 1ull << 63, image.size() + 1};
    const uint64_t offsets[] = {at, 0, at + 1, UINT64_MAX, 8192};
    const uint64_t addresses[] = {reinterpret_cast<uintptr_t>(image.data()), 0, 0x1000, UINT64_MAX};
    while (!stop.load()) {
      gpuprof_module_entry entry = {};
      entry.hash = key;
      entry.size_bytes = sizes[random() % 6];
      entry.copy_offset = offsets[random() % 5];
      entry.address = addresses[random() % 4];
      entry.state = random() % 6;
      set(static_cast<uint32_t>(random() % 4), entry);
    }
  });
  uint64_t right = 0, tried = 0;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  ModuleReader one = reader(self(), {.max_total_bytes = UINT64_MAX});
  while ((right < 20 || tried < 500) && std::chrono::steady_clock::now() < deadline) {
    ++tried;
    if (one.read(key, sink_) != ModuleFailure::kNone) continue;
    ++right;
    ASSERT_EQ(sink_.bytes, image);
  }
  stop = true;
  EXPECT_GE(right, 20u);
}

}  // namespace
}  // namespace gpuprof::target

// SPDX-License-Identifier: Apache-2.0
//
// More modules than there is room for, and who waits for whom.
#include <dirent.h>

#include <set>

#include "tests/unit/cli/device_modules_fixture.h"

namespace gpuprof::cli {
namespace {

using std::chrono::milliseconds;
using testing::cubin_bytes;
using testing::DeviceModulesTest;
using testing::key_of;
using testing::never;
using testing::noise;
using testing::Unanswered;

constexpr uint64_t kRoom = 200'000;

class DeviceModulesRoom : public DeviceModulesTest {
 protected:
  DeviceModulesRoom() {
    cubin::StoreLimits limits;
    limits.max_bytes = kRoom;
    limited_.emplace(limits);
    limited_->enable();
    for (uint32_t i = 0; i < 20; ++i) images_.push_back(noise(30'000, i));
  }
  // Another program of ours, whose modules we have loaded too.
  [[nodiscard]] ProcessId other() const {
    ProcessId out = id_;
    out.image = 1;
    return out;
  }
  void flood() {
    for (const auto& image : images_) {
      limited_->want(other(), load(image));
      limited_->settle(milliseconds(60'000), never);
    }
  }

  std::optional<DeviceModules> limited_;
  std::vector<std::vector<std::byte>> images_;
};

TEST_F(DeviceModulesRoom, AFloodOfModulesCostsAQuietProcessNothing) {
  const std::vector<std::byte> image = cubin_bytes();
  const uint64_t key = load(image);
  limited_->add_process(id_, memfd());
  limited_->add_process(other(), memfd());
  limited_->want(id_, key);
  limited_->settle(milliseconds(60'000), never);
  flood();
  EXPECT_GE(limited_->store().stats().evicted, 10u);
  EXPECT_LE(limited_->store().stats().bytes, kRoom);
  const join::DeviceModule& module = limited_->module(id_, key);
  EXPECT_NE(module.image, nullptr) << module.missing;
  EXPECT_EQ(limited_->counts(id_).bytes_read, image.size()) << "not once more";
}

TEST_F(DeviceModulesRoom, WhatWasEvictedIsReadAgainWhileItsProcessLives) {
  limited_->add_process(other(), memfd());
  flood();
  const uint64_t first = key_of(images_[0]), second = key_of(images_[1]);
  EXPECT_EQ(limited_->module(other(), first).missing, "malformed") << "noise, but it is there";
  EXPECT_EQ(limited_->counts(other()).reread, 1u);
  auto bytes = limited_->bytes(cubin::sha256_hex(images_[2]));
  ASSERT_TRUE(bytes.has_value()) << bytes.error().message;
  EXPECT_EQ(*bytes, images_[2]);
  EXPECT_EQ(limited_->counts(other()).reread, 2u);
  EXPECT_EQ(limited_->counts(other()).read, images_.size());
  limited_->process_exited(other());
  limited_->settle(milliseconds(60'000), never);
  EXPECT_EQ(limited_->module(other(), second).missing, "evicted");
  EXPECT_EQ(limited_->bytes(cubin::sha256_hex(images_[1])).error().code, Code::kNotFound);
}

size_t open_descriptors() {
  size_t count = 0;
  DIR* const directory = ::opendir("/proc/self/fd");
  while (directory != nullptr && ::readdir(directory) != nullptr) ++count;
  if (directory != nullptr) ::closedir(directory);
  return count;
}

TEST_F(DeviceModulesTest, AReplacedProgramsMemfdIsClosed) {
  const std::vector<std::byte> image = cubin_bytes();
  const uint64_t key = load(image, true);
  const size_t before = open_descriptors();
  modules_.add_process(id_, memfd());
  EXPECT_EQ(open_descriptors(), before + 1);
  modules_.memory_gone(id_);
  modules_.advance(monotonic_ns());
  modules_.want(id_, key);  // its last samples
  modules_.settle(milliseconds(60'000), never);
  EXPECT_EQ(missing(key), "");
  modules_.advance(monotonic_ns() + 2 * DeviceModules::kLastWordsNs);
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_EQ(modules_.counts(id_).in_table, 1u);
  EXPECT_EQ(missing(key), "");
  modules_.want(id_, 7);
  EXPECT_EQ(missing(7), "gone");
}

// The jobs lie behind one that does not end, so that their order is known.
TEST_F(DeviceModulesTest, EarlyReadsAndSamplesTakeTurnsInTheirOrder) {
  constexpr uint64_t kSamples = 40, kEarly = 4;
  const Unanswered trap;
  gpuprof_module_entry entry = {};
  entry.state = GPUPROF_MODULE_PRESENT;
  entry.address = trap.address();
  entry.size_bytes = Unanswered::kBytes;
  entry.hash = 1;
  append(entry);
  ProcessId hostile = id_;
  hostile.start_ticks += 1;
  const auto trapped = std::make_shared<target::ModuleReader>(memfd(), id_);
  const auto reader = std::make_shared<target::ModuleReader>(memfd(), id_);
  ModuleThread thread(std::make_shared<cubin::Store>(), 100'000'000);
  thread.add({.process = hostile, .reader = trapped, .key = 1});
  for (uint64_t key = 100; key < 100 + kSamples; ++key)
    thread.add({.process = id_, .reader = reader, .key = key});
  for (uint64_t key = 200; key < 200 + kEarly; ++key)
    thread.add({.process = id_, .reader = reader, .key = key, .is_early = true});
  std::vector<uint64_t> order;
  const uint64_t deadline = monotonic_ns() + 60'000'000'000;
  while (order.size() < 1 + kSamples + kEarly && monotonic_ns() < deadline) {
    for (const ModuleOutcome& outcome : thread.collect(monotonic_ns(), 20'000'000))
      order.push_back(outcome.key);
  }
  std::vector<uint64_t> expected = {1};
  for (uint64_t i = 0; i < ModuleThread::kTurn; ++i) expected.push_back(100 + i);
  for (uint64_t i = 0; i < kEarly; ++i) expected.push_back(200 + i);
  for (uint64_t i = ModuleThread::kTurn; i < kSamples; ++i) expected.push_back(100 + i);
  EXPECT_EQ(order, expected);
}

}  // namespace
}  // namespace gpuprof::cli

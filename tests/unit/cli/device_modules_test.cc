// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/device_modules.h"

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

TEST_F(DeviceModulesTest, ASampledModuleIsReadAndResolves) {
  const std::vector<std::byte> image = cubin_bytes();
  const uint64_t key = load(image);
  modules_.add_process(id_, memfd());
  for (int i = 0; i < 1000; ++i) modules_.want(id_, key);
  modules_.settle(milliseconds(60'000), never);
  const join::DeviceModule& module = modules_.module(id_, key);
  ASSERT_NE(module.image, nullptr) << module.missing;
  EXPECT_EQ(module.sha256, cubin::sha256_hex(image));
  EXPECT_EQ(module.missing, "");
  EXPECT_EQ(module.image->sm(), 90u);
  EXPECT_EQ(modules_.sampled(), std::vector<std::string>{module.sha256});
  const ModuleCounts counts = modules_.counts(id_);
  EXPECT_EQ(counts.in_table, 1u);
  EXPECT_EQ(counts.sampled, 1u);
  EXPECT_EQ(counts.read, 1u);
  EXPECT_EQ(counts.bytes_read, image.size()) << "once";
}

TEST_F(DeviceModulesTest, SamplesMayComeBeforeTheMemfdIsFound) {
  const std::vector<std::byte> image = cubin_bytes();
  const uint64_t key = load(image);
  modules_.want(id_, key);
  modules_.advance(monotonic_ns());
  modules_.add_process(id_, memfd());
  modules_.settle(milliseconds(60'000), never);
  EXPECT_EQ(missing(key), "");
}

TEST_F(DeviceModulesTest, AForgottenProcessLeavesNothing) {
  const uint64_t key = load(cubin_bytes());
  modules_.add_process(id_, memfd());
  modules_.want(id_, key);
  modules_.process_exited(id_);
  modules_.forget(id_);  // its image may be on its way
  modules_.settle(milliseconds(60'000), never);
  modules_.advance(monotonic_ns());
  EXPECT_EQ(modules_.store().stats().images, 0u);
  EXPECT_EQ(modules_.counts(id_).sampled, 0u);
  EXPECT_TRUE(modules_.sampled().empty());
}

TEST_F(DeviceModulesTest, OnlyWhatIsSampledIsRead) {
  const std::vector<std::byte> one = cubin_bytes(), other = noise(100'000, 1);
  const uint64_t key = load(one);
  load(other);
  modules_.add_process(id_, memfd());
  modules_.want(id_, key);
  modules_.settle(milliseconds(60'000), never);
  EXPECT_EQ(modules_.counts(id_).bytes_read, one.size());
  EXPECT_EQ(modules_.counts(id_).in_table, 2u);
}

TEST_F(DeviceModulesTest, EachProcessHasWhatWasReadFromItself) {
  const std::vector<std::byte> image = cubin_bytes();
  const uint64_t key = load(image);
  modules_.add_process(id_, memfd());
  modules_.want(id_, key);
  modules_.settle(milliseconds(60'000), never);
  ProcessId neighbour = id_;
  neighbour.image = 1;  // another program, without any module
  const UniqueFd empty(::memfd_create("empty", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(empty.get(), kCopies), 0);
  modules_.add_process(neighbour, UniqueFd(::dup(empty.get())));
  modules_.want(neighbour, key);
  modules_.settle(milliseconds(60'000), never);
  EXPECT_EQ(missing(key), "");
  EXPECT_EQ(modules_.module(neighbour, key).missing, "foreign-key");
  EXPECT_EQ(modules_.module(neighbour, key).image, nullptr);
}

TEST_F(DeviceModulesTest, EveryReasonIsTold) {
  const std::vector<std::byte> image = noise(5000, 1), other = noise(5000, 2);
  const uint64_t junk = load(image);  // hashes well and is no cubin
  gpuprof_module_entry entry = {};
  entry.state = GPUPROF_MODULE_PRESENT;
  entry.hash = 1;
  entry.address = reinterpret_cast<uintptr_t>(other.data());
  entry.size_bytes = other.size();
  append(entry);  // something else lies there
  entry.hash = 2;
  entry.size_bytes = 1ull << 62;
  append(entry);
  entry.hash = 3;
  entry.address = 0x1000;
  entry.size_bytes = 5000;
  append(entry);
  entry.hash = 4;
  entry.state = GPUPROF_MODULE_GONE;
  append(entry);
  modules_.add_process(id_, memfd());
  for (const uint64_t key : {junk, uint64_t{1}, uint64_t{2}, uint64_t{3}, uint64_t{4}, uint64_t{5}})
    modules_.want(id_, key);
  modules_.settle(milliseconds(60'000), never);
  EXPECT_EQ(missing(junk), "malformed");
  EXPECT_EQ(missing(1), "hash-mismatch");
  EXPECT_EQ(missing(2), "too-large");
  EXPECT_EQ(missing(3), "unreadable");
  EXPECT_EQ(missing(4), "gone");
  EXPECT_EQ(missing(5), "foreign-key");
  const ModuleCounts counts = modules_.counts(id_);
  EXPECT_EQ(counts.sampled, 6u);
  EXPECT_EQ(counts.read, 1u);
  for (size_t i = 1; i < target::kModuleFailureCount; ++i) {
    const auto failure = static_cast<target::ModuleFailure>(i);
    EXPECT_EQ(counts.failed[i], failure == target::ModuleFailure::kOverBudget ? 0u : 1u)
        << target::module_failure_name(failure);
  }
  EXPECT_EQ(counts.pending, 0u);
}

TEST_F(DeviceModulesTest, AnEntryThatWasHalfWrittenIsTriedAgain) {
  const std::vector<std::byte> image = cubin_bytes();
  modules_.add_process(id_, memfd());
  modules_.want(id_, key_of(image));
  const uint64_t deadline = monotonic_ns() + 60'000'000'000;
  while (modules_.counts(id_).retries == 0 && monotonic_ns() < deadline)
    modules_.advance(monotonic_ns());
  ASSERT_EQ(modules_.counts(id_).retries, 1u);
  load(image);
  modules_.settle(milliseconds(60'000), never);
  EXPECT_EQ(missing(key_of(image)), "");
}

TEST_F(DeviceModulesTest, LoadedWhileWeListenOutlivesTheProcess) {
  const std::vector<std::byte> image = cubin_bytes();
  const uint64_t key = load(image);
  modules_.add_process(id_, memfd());
  modules_.note(id_, event(key, image.size(), GPUPROF_MODULE_LOADED));
  modules_.settle(milliseconds(60'000), never);
  EXPECT_EQ(modules_.counts(id_).read_early, 1u);
  EXPECT_TRUE(modules_.sampled().empty()) << "no sample has named it";
  modules_.memory_gone(id_);
  modules_.want(id_, key);
  modules_.process_exited(id_);
  modules_.settle(milliseconds(60'000), never);
  EXPECT_EQ(missing(key), "");
  EXPECT_EQ(modules_.counts(id_).sampled, 1u);
  EXPECT_EQ(modules_.counts(id_).read_early, 0u);
}

TEST_F(DeviceModulesTest, WhatIsCopiedIsLeftUntilItIsWantedAndOutlivesTheProcess) {
  const std::vector<std::byte> image = cubin_bytes();
  const uint64_t key = load(image, true);
  modules_.add_process(id_, memfd());
  modules_.note(id_, event(key, image.size(), GPUPROF_MODULE_UNLOADING));
  modules_.settle(milliseconds(60'000), never);
  EXPECT_EQ(modules_.counts(id_).bytes_read, 0u);
  modules_.want(id_, key);
  modules_.process_exited(id_);
  modules_.settle(milliseconds(60'000), never);
  EXPECT_EQ(missing(key), "");
  EXPECT_EQ(modules_.counts(id_).in_table, 1u) << "counted before the memfd was closed";
}

TEST_F(DeviceModulesTest, EarlyReadingHasABudget) {
  const std::vector<std::byte> image = noise(1'000'000, 1);
  modules_.add_process(id_, memfd());
  modules_.note(id_, event(load(image), DeviceModules::kEarlyBytes + 1, GPUPROF_MODULE_LOADED));
  modules_.settle(milliseconds(60'000), never);
  EXPECT_EQ(modules_.counts(id_).bytes_read, 0u);
  modules_.note(id_, event(key_of(image), DeviceModules::kEarlyBytes, GPUPROF_MODULE_LOADED));
  const std::vector<std::byte> second = noise(1000, 2);
  const uint64_t key = load(second);
  modules_.note(id_, event(key, second.size(), GPUPROF_MODULE_LOADED));
  modules_.settle(milliseconds(60'000), never);
  EXPECT_EQ(modules_.counts(id_).bytes_read, image.size()) << "all was set aside for the first";
  modules_.note(id_, event(key, second.size(), GPUPROF_MODULE_LOADED));
  modules_.settle(milliseconds(60'000), never);
  EXPECT_EQ(modules_.counts(id_).bytes_read, image.size() + second.size())
      << "charged is what was read";
}

TEST_F(DeviceModulesTest, EarlyReadingIsHeldToWhatWasAnnounced) {
  const std::vector<std::byte> image = cubin_bytes();
  const uint64_t key = load(image);
  modules_.add_process(id_, memfd());
  modules_.note(id_, event(key, image.size() - 1, GPUPROF_MODULE_LOADED));
  modules_.settle(milliseconds(60'000), never);
  EXPECT_EQ(modules_.counts(id_).bytes_read, 0u);
  EXPECT_EQ(missing(key), "over-budget");
  modules_.want(id_, key);  // a sample is not held to that
  modules_.settle(milliseconds(60'000), never);
  EXPECT_EQ(missing(key), "");
}

TEST_F(DeviceModulesTest, AnImageThatWentAndCameBackIsReadAgain) {
  const std::vector<std::byte> image = cubin_bytes();
  gpuprof_module_entry gone = {};
  gone.hash = key_of(image);
  gone.address = 0x1000;
  gone.size_bytes = image.size();
  gone.state = GPUPROF_MODULE_GONE;
  append(gone);
  modules_.add_process(id_, memfd());
  modules_.want(id_, gone.hash);
  modules_.settle(milliseconds(60'000), never);
  EXPECT_EQ(missing(gone.hash), "gone");
  load(image);
  modules_.note(id_, event(gone.hash, image.size(), GPUPROF_MODULE_LOADED));
  modules_.settle(milliseconds(60'000), never);
  EXPECT_EQ(missing(gone.hash), "");
}

TEST_F(DeviceModulesTest, ProcessesWhoseMemfdIsNeverFoundGiveTheirBudgetBack) {
  for (uint32_t i = 1; i <= 64; ++i) {
    ProcessId child = id_;
    child.image = i;
    modules_.note(child, event(i, DeviceModules::kEarlyBytes, GPUPROF_MODULE_LOADED));
    modules_.process_exited(child);
  }
  const std::vector<std::byte> image = cubin_bytes();
  const uint64_t key = load(image);
  modules_.add_process(id_, memfd());
  modules_.note(id_, event(key, image.size(), GPUPROF_MODULE_LOADED));
  modules_.settle(milliseconds(60'000), never);
  EXPECT_EQ(modules_.counts(id_).bytes_read, image.size());
}

TEST_F(DeviceModulesTest, KeysAreBounded) {
  modules_.add_process(id_, memfd());
  for (uint64_t key = 0; key < DeviceModules::kMaxKeys + 10; ++key) modules_.want(id_, key);
  EXPECT_EQ(modules_.counts(id_).keys_refused, 10u);
  EXPECT_EQ(modules_.counts(id_).sampled, DeviceModules::kMaxKeys);
  EXPECT_EQ(missing(DeviceModules::kMaxKeys + 5), "too-many-keys");
}

TEST_F(DeviceModulesTest, KeysAreBoundedOverAllProcesses) {
  constexpr size_t kFlooding = 2 * DeviceModules::kMaxKeysInAll / DeviceModules::kMaxKeys;
  uint64_t sampled = 0;
  for (uint32_t i = 1; i <= kFlooding; ++i) {
    ProcessId flooding = id_;
    flooding.image = i;
    for (uint64_t key = 0; key < DeviceModules::kMaxKeys; ++key) modules_.want(flooding, key);
    sampled += modules_.counts(flooding).sampled;
  }
  EXPECT_LE(sampled, DeviceModules::kMaxKeysInAll + kFlooding * DeviceModules::kReservedKeys);
  for (uint64_t key = 0; key < DeviceModules::kReservedKeys; ++key) modules_.want(id_, key);
  EXPECT_EQ(modules_.counts(id_).keys_refused, 0u) << "a quiet one has its reserve";
  for (uint32_t i = kFlooding + 1; i < kFlooding + 4096; ++i) {
    ProcessId flooding = id_;
    flooding.image = i;
    for (uint64_t key = 0; key < DeviceModules::kReservedKeys; ++key) modules_.want(flooding, key);
    sampled += modules_.counts(flooding).sampled;
  }
  EXPECT_LE(sampled, 2 * DeviceModules::kMaxKeysInAll);
}

TEST_F(DeviceModulesTest, NotAskedForNothingIsRead) {
  DeviceModules off;
  const std::vector<std::byte> image = cubin_bytes();
  const uint64_t key = load(image);
  off.add_process(id_, memfd());
  off.want(id_, key);
  off.note(id_, event(key, image.size(), GPUPROF_MODULE_LOADED));
  off.settle(milliseconds(1000), never);
  EXPECT_EQ(off.module(id_, key).missing, "unreadable");
  EXPECT_EQ(off.counts(id_).bytes_read, 0u);
}

TEST_F(DeviceModulesTest, ATargetThatLetsNobodyReadCostsTheOthersNothing) {
  const Unanswered trap;
  const std::vector<std::byte> image = cubin_bytes();
  const uint64_t key = load(image);
  gpuprof_module_entry entry = {};
  entry.state = GPUPROF_MODULE_PRESENT;
  entry.address = trap.address();
  entry.size_bytes = Unanswered::kBytes;
  for (entry.hash = 100; entry.hash < 120; ++entry.hash) append(entry);
  DeviceModules modules({}, 300'000'000);
  modules.enable();
  ProcessId hostile = id_;
  hostile.start_ticks += 1;  // another process to us; its memory is read by the pid
  modules.add_process(hostile, memfd());
  for (uint64_t bad = 100; bad < 120; ++bad) modules.want(hostile, bad);
  modules.add_process(id_, memfd());
  modules.want(id_, key);
  modules.settle(milliseconds(60'000), never);
  EXPECT_EQ(modules.module(id_, key).missing, "");
  EXPECT_EQ(modules.module(hostile, 100).missing, "unreadable");
  EXPECT_EQ(modules.counts(hostile).pending, 0u);
  EXPECT_EQ(modules.stuck(), 1u) << "once, and then nothing is asked of it any more";
  modules.want(hostile, 7);
  EXPECT_EQ(modules.module(hostile, 7).missing, "unreadable");
}

// Answers each fault after a while: always progress, never an end.
class Hesitant {
 public:
  static constexpr size_t kBytes = 4 << 20, kAnswer = 256 << 10;
  explicit Hesitant(milliseconds delay)
      : thread_([this, delay](const std::stop_token& stop) { answer(stop, delay); }) {}
  [[nodiscard]] uint64_t address() const { return memory_.address(); }

 private:
  void answer(const std::stop_token& stop, milliseconds delay) const {
    while (!stop.stop_requested()) {
      pollfd wait = {memory_.fault_fd(), POLLIN, 0};
      uffd_msg message = {};
      if (::poll(&wait, 1, 20) != 1 ||
          ::read(memory_.fault_fd(), &message, sizeof message) != sizeof message)
        continue;
      std::this_thread::sleep_for(delay);
      uffdio_zeropage pages = {};
      const uint64_t base = memory_.address();
      pages.range.start = base + (message.arg.pagefault.address - base) / kAnswer * kAnswer;
      pages.range.len = kAnswer;
      ::ioctl(memory_.fault_fd(), UFFDIO_ZEROPAGE, &pages);
    }
  }

  Unanswered memory_{kBytes};
  std::jthread thread_;  // stops first
};

TEST_F(DeviceModulesTest, ATargetThatAnswersSlowlyIsGivenUpToo) {
  const Hesitant trap(milliseconds(500));  // eight seconds for the image
  const std::vector<std::byte> image = cubin_bytes();
  const uint64_t key = load(image);
  gpuprof_module_entry entry = {};
  entry.state = GPUPROF_MODULE_PRESENT;
  entry.address = trap.address();
  entry.size_bytes = Hesitant::kBytes;
  entry.hash = 100;
  append(entry);
  DeviceModules modules({}, 1'500'000'000);
  modules.enable();
  ProcessId hostile = id_;
  hostile.start_ticks += 1;  // another process to us; its memory is read by the pid
  modules.add_process(hostile, memfd());
  modules.want(hostile, 100);
  modules.add_process(id_, memfd());
  modules.want(id_, key);
  modules.settle(milliseconds(60'000), never);
  EXPECT_EQ(modules.module(id_, key).missing, "");
  EXPECT_EQ(modules.module(hostile, 100).missing, "unreadable");
  EXPECT_EQ(modules.stuck(), 1u);
}

}  // namespace
}  // namespace gpuprof::cli

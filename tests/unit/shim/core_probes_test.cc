// SPDX-License-Identifier: Apache-2.0
//
// What fires, when, and with which sequence numbers.
#include "shim/core/probes.h"

#include <algorithm>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "shim/core/exec_batch.h"
#include "shim/core/metadata.h"
#include "shim/core/owner.h"
#include "shim/core/sampler.h"
#include "shim/core/status.h"
#include "tests/unit/shim/core_site_hook.h"

namespace gpuprof::shim {
namespace {

using testing::set_semaphore;
using ExecRecorder = testing::SiteRecorder<GPUPROF_PROBE_EXEC, gpuprof_exec_v1>;
using DropRecorder = testing::SiteRecorder<GPUPROF_PROBE_DROP, gpuprof_drop_v1>;
using DeviceRecorder = testing::SiteRecorder<GPUPROF_PROBE_DEVICE, gpuprof_device_v1>;
using WindowRecorder = testing::SiteRecorder<GPUPROF_PROBE_WINDOW, gpuprof_window_v1>;

class Probes : public ::testing::Test {
 protected:
  void SetUp() override { (void)own_process(); }
};

TEST_F(Probes, NothingIsFiredOrCountedWhileNobodyIsAttached) {
  gpuprof_exec_v1 record{};
  const uint64_t before = emitted(GPUPROF_PROBE_EXEC);
  EXPECT_FALSE(enabled(GPUPROF_PROBE_EXEC));
  EXPECT_EQ(emit(GPUPROF_PROBE_EXEC, &record, 1), 0u);
  EXPECT_EQ(emitted(GPUPROF_PROBE_EXEC), before);
}

TEST_F(Probes, ArgumentsArriveInTheRegistersOfTheNoteAndSeqCountsRecords) {
  ExecRecorder recorder(gpuprof_fire_exec_v1);
  const uint64_t base = emitted(GPUPROF_PROBE_EXEC);
  std::vector<gpuprof_exec_v1> batch(GPUPROF_MAX_BATCH_RECORDS);
  for (uint32_t i = 0; i < batch.size(); ++i) batch[i].correlation = i;
  EXPECT_EQ(emit(GPUPROF_PROBE_EXEC, batch.data(), 256), 256u);
  EXPECT_EQ(emit(GPUPROF_PROBE_EXEC, batch.data() + 7, 1), 1u);
  const auto firings = recorder.firings();
  ASSERT_EQ(firings.size(), 2u);
  EXPECT_EQ(firings[0].seq, base);
  EXPECT_EQ(firings[0].count, 256u);
  EXPECT_EQ(firings[1].seq, base + 256);
  ASSERT_EQ(recorder.records().size(), 257u);
  EXPECT_EQ(recorder.records()[255].correlation, 255u);
  EXPECT_EQ(recorder.records()[256].correlation, 7u);
}

TEST_F(Probes, BatchesOutOfBoundsAreRefused) {
  ExecRecorder recorder(gpuprof_fire_exec_v1);
  DeviceRecorder devices(gpuprof_fire_device_v1);
  std::vector<gpuprof_exec_v1> batch(300);
  std::vector<gpuprof_device_v1> many(256);  // 40,960 bytes
  EXPECT_EQ(emit(GPUPROF_PROBE_EXEC, batch.data(), 0), 0u);
  EXPECT_EQ(emit(GPUPROF_PROBE_EXEC, batch.data(), 257), 0u);
  EXPECT_EQ(emit(GPUPROF_PROBE_DEVICE, many.data(), 205), 0u);
  EXPECT_EQ(emit(GPUPROF_PROBE_DEVICE, many.data(), 204), 204u);
  EXPECT_EQ(emit(GPUPROF_PROBE_COUNT, batch.data(), 1), 0u);
  EXPECT_TRUE(recorder.firings().empty());
}

TEST_F(Probes, AutoarmGatesNothingAndNeverFires) {
  set_semaphore(GPUPROF_PROBE_AUTOARM, 3);
  EXPECT_EQ(semaphore(GPUPROF_PROBE_AUTOARM), 3);
  char record[64] = {};
  EXPECT_EQ(emit(GPUPROF_PROBE_AUTOARM, record, 1), 0u);
  set_semaphore(GPUPROF_PROBE_AUTOARM, 0);
}

TEST_F(Probes, EdgesAreSeenWhenTheSemaphoreRisesOnly) {
  EXPECT_FALSE(semaphore_edge(GPUPROF_PROBE_MODULE));
  set_semaphore(GPUPROF_PROBE_MODULE, 1);
  EXPECT_TRUE(semaphore_edge(GPUPROF_PROBE_MODULE));
  EXPECT_FALSE(semaphore_edge(GPUPROF_PROBE_MODULE));
  set_semaphore(GPUPROF_PROBE_MODULE, 2);  // a second reader needs the metadata too
  EXPECT_TRUE(semaphore_edge(GPUPROF_PROBE_MODULE));
  set_semaphore(GPUPROF_PROBE_MODULE, 1);
  EXPECT_FALSE(semaphore_edge(GPUPROF_PROBE_MODULE));
  set_semaphore(GPUPROF_PROBE_MODULE, 0);
  EXPECT_FALSE(semaphore_edge(GPUPROF_PROBE_MODULE));
}

TEST_F(Probes, ConcurrentBatchesTileTheSequence) {
  ExecRecorder recorder(gpuprof_fire_exec_v1);
  const uint64_t base = emitted(GPUPROF_PROBE_EXEC);
  constexpr int kThreads = 4, kRounds = 500;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([] {
      gpuprof_exec_v1 records[3] = {};
      for (int i = 0; i < kRounds; ++i) emit(GPUPROF_PROBE_EXEC, records, 1 + i % 3);
    });
  }
  for (auto& thread : threads) thread.join();
  auto firings = recorder.firings();
  std::sort(firings.begin(), firings.end(), [](auto& a, auto& b) { return a.seq < b.seq; });
  uint64_t expected = base;
  for (const auto& firing : firings) {
    ASSERT_EQ(firing.seq, expected);
    expected += firing.count;
  }
  EXPECT_EQ(emitted(GPUPROF_PROBE_EXEC), expected);
}

TEST_F(Probes, ExecBatchEmitsEverythingOnceAlsoWhenAllBuffersAreTaken) {
  ExecRecorder recorder(gpuprof_fire_exec_v1);
  constexpr uint32_t kBatches = 11, kEach = 300;  // 8 slots, 3 inline
  {
    std::vector<std::unique_ptr<ExecBatch>> batches;
    for (uint32_t b = 0; b < kBatches; ++b) batches.push_back(std::make_unique<ExecBatch>());
    for (uint32_t i = 0; i < kEach; ++i) {
      for (uint32_t b = 0; b < kBatches; ++b) {
        gpuprof_exec_v1& record = batches[b]->next();
        EXPECT_EQ(record.bytes, 0u);  // zeroed although the slot was used before
        record.correlation = b * kEach + i;
        record.bytes = 1;
      }
    }
  }
  auto records = recorder.records();
  ASSERT_EQ(records.size(), kBatches * kEach);
  std::sort(records.begin(), records.end(),
            [](auto& a, auto& b) { return a.correlation < b.correlation; });
  for (uint32_t i = 0; i < records.size(); ++i) ASSERT_EQ(records[i].correlation, i);
  uint32_t largest = 0, smallest = 256;
  for (const auto& firing : recorder.firings()) {
    largest = std::max(largest, firing.count);
    smallest = std::min(smallest, firing.count);
  }
  EXPECT_EQ(largest, 256u);
  EXPECT_EQ(smallest, 4u);  // 300 mod 8 of an inline batch
}

TEST_F(Probes, ExecBatchCancelTakesBackTheLast) {
  ExecRecorder recorder(gpuprof_fire_exec_v1);
  {
    ExecBatch batch;
    batch.next().correlation = 1;
    batch.next().correlation = 2;
    batch.cancel();
    batch.next().correlation = 3;
  }
  ASSERT_EQ(recorder.records().size(), 2u);
  EXPECT_EQ(recorder.records()[1].correlation, 3u);
}

uint64_t total_of(const std::vector<gpuprof_drop_v1>& records, uint32_t drop_class,
                  uint32_t detail = 0) {
  for (const auto& record : records) {
    if (record.drop_class == drop_class && record.detail == detail) return record.total;
  }
  return UINT64_MAX;
}

TEST_F(Probes, DropsAreEmittedWhenTheyChangedAndAllOfThemAtTheEnd) {
  count_drop(GPUPROF_DROP_CUPTI, 5);
  emit_drops(false);  // nobody listens: nothing may be marked as told
  DropRecorder recorder(gpuprof_fire_drop_v1);
  emit_drops(false);
  const uint64_t cupti = drop_total(GPUPROF_DROP_CUPTI);
  EXPECT_EQ(total_of(recorder.records(), GPUPROF_DROP_CUPTI), cupti);
  recorder.clear();
  emit_drops(false);
  EXPECT_TRUE(recorder.firings().empty());
  count_drop(GPUPROF_DROP_NO_BUFFER);
  emit_drops(false);
  ASSERT_EQ(recorder.records().size(), 1u);
  EXPECT_EQ(recorder.records()[0].drop_class, uint32_t{GPUPROF_DROP_NO_BUFFER});
  recorder.clear();
  emit_drops(true);
  const auto records = recorder.records();
  EXPECT_EQ(total_of(records, GPUPROF_DROP_CUPTI), cupti);
  EXPECT_EQ(total_of(records, GPUPROF_DROP_FINAL_TOTAL, GPUPROF_PROBE_EXEC),
            emitted(GPUPROF_PROBE_EXEC));
  // Its own total includes the batch that says so.
  EXPECT_EQ(total_of(records, GPUPROF_DROP_FINAL_TOTAL, GPUPROF_PROBE_DROP),
            emitted(GPUPROF_PROBE_DROP));
}

TEST_F(Probes, LaunchCountsAreExactOverThreads) {
  const uint64_t seen = drop_total(GPUPROF_DROP_LAUNCHES_SEEN);
  const uint64_t drawn = drop_total(GPUPROF_DROP_LAUNCHES_DRAWN);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 10'000; ++i) count_launch(i % 10 == 0);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(drop_total(GPUPROF_DROP_LAUNCHES_SEEN) - seen, 80'000u);
  EXPECT_EQ(drop_total(GPUPROF_DROP_LAUNCHES_DRAWN) - drawn, 8'000u);
}

TEST_F(Probes, DevicesAndOpenWindowsAreReplayedOnTheEdge) {
  gpuprof_device_v1 device{};
  device.device_id = 3;
  device.sm_count = 132;
  EXPECT_TRUE(publish_device(device));  // nobody attached
  gpuprof_window_v1 window{};
  window.window_id = 9;
  window.event = GPUPROF_WINDOW_OPEN;
  publish_window(window);
  window.window_id = 10;
  publish_window(window);
  window.event = GPUPROF_WINDOW_CLOSE;
  publish_window(window);
  replay_on_edges();
  DeviceRecorder devices(gpuprof_fire_device_v1);
  WindowRecorder windows(gpuprof_fire_window_v1);
  replay_on_edges();
  ASSERT_EQ(devices.records().size(), 1u);
  EXPECT_EQ(devices.records()[0].sm_count, 132u);
  ASSERT_EQ(windows.records().size(), 1u);
  EXPECT_EQ(windows.records()[0].window_id, 9u);
  replay_on_edges();
  EXPECT_EQ(devices.records().size(), 1u);
  EXPECT_TRUE(publish_device(device));  // unchanged
  EXPECT_EQ(devices.records().size(), 1u);
  publish_sampling_period(3, 18);
  publish_sampling_period(4, 18);  // not known
  ASSERT_EQ(devices.records().size(), 2u);
  EXPECT_EQ(devices.records()[1].sampling_period, 18u);
  EXPECT_EQ(devices.records()[1].sm_count, 132u);
  EXPECT_TRUE(publish_device(device));  // facts do not know the period
  EXPECT_EQ(devices.records().size(), 2u);
  device.device_id = kMaxDevices;
  EXPECT_FALSE(publish_device(device));
}

}  // namespace
}  // namespace gpuprof::shim

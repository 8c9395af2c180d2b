// SPDX-License-Identifier: Apache-2.0
// PC sampling of the fake: how many samples there are, where they fall, when they come.
#include <fstream>
#include <iterator>

#include "tests/unit/fake_cuda/pc_client.h"

namespace fakecuda {
namespace {

using testing::ExitedWithCode;

class PcSampling : public testing::Test {
 protected:
  void SetUp() override { testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

#define EXPECT_FINE(...) expect_exit(0, "", [] { __VA_ARGS__ })

constexpr uint64_t kKey = 0x1234'5678'9abc'def0;
constexpr uint32_t kContinuous = 1;
constexpr uint32_t kSerialized = 2;

void hash(const void*, size_t, uint64_t* key) { *key = kKey; }

/// 1 sample a µs of kernel time: one SM of 1.024 GHz at 2^10 cycles.
void one_sample_a_microsecond() {
  setenv("FAKE_CUDA_SMS", "1", 1);
  setenv("FAKE_CUDA_CLOCK_KHZ", "1024000", 1);
}

void wait_for_decoder() {
  fake_cuda_drain();
  usleep(300'000);  // it has woken once more since
}

TEST_F(PcSampling, SamplesFollowTimeAndWeights) {
  EXPECT_FINE(
      one_sample_a_microsecond(); start(); cuptiRegisterComputeCrcCallback(hash);
      CUfunction f = function("kernel_a");
      REQUIRE(fake_cuda_pcs(f, "0x10:long_scoreboard*6/4 0x20:wait*3/1 0x20:selected") == 0);
      PcClient pc; in_launch_exit(f,
                                  [&] {
                                    REQUIRE(pc.enable() == CUPTI_SUCCESS);
                                    REQUIRE(pc.configure(10, kContinuous, false) == CUPTI_SUCCESS);
                                    REQUIRE(pc.period() == 10);
                                  });
      for (int i = 0; i < 100; ++i) launch(f, 20'000); wait_for_decoder();
      REQUIRE(pc.drain() == CUPTI_SUCCESS && pc.data.remainingNumPcs == 0);
      REQUIRE(pc.data.totalSamples == 2000 && pc.samples() == 2000 && pc.records.size() == 2);
      for (PcRecord& r
           : pc.records) {
        REQUIRE(r.crc == kKey && r.correlation == 0 && r.function == "kernel_a");
        if (r.offset == 0x10) {
          REQUIRE(r.stalls["long_scoreboard"] == 1200);
          REQUIRE(r.stalls["long_scoreboard_not_issued"] == 800);
        } else {
          REQUIRE(r.offset == 0x20 && r.stalls[""] == 800 && r.stalls["wait"] == 600);
          REQUIRE(r.stalls["wait_not_issued"] == 200 && r.stalls["selected"] == 200);
        }
      } REQUIRE(pc.drain() == CUPTI_SUCCESS && pc.data.totalSamples == 0 &&
                pc.data.totalNumPcs == 0);
      REQUIRE(pc.names.size() == 40 && pc.names[0] == "smsp__pcsamp_sample_count"););
}

TEST_F(PcSampling, WithoutAHashCallbackTheKeyIsCuptisOwn) {
  EXPECT_FINE(one_sample_a_microsecond(); start(); CUfunction f = function("k");
              CUpti_GetCubinCrcParams crc{CUpti_GetCubinCrcParamsSize, 4, "ptx", 0};
              REQUIRE(cuptiGetCubinCrc(&crc) == CUPTI_SUCCESS); PcClient pc;
              in_launch_exit(f,
                             [&] {
                               REQUIRE(pc.enable() == CUPTI_SUCCESS);
                               REQUIRE(pc.configure(10, kContinuous, false) == CUPTI_SUCCESS);
                             });
              launch(f, 100'000); wait_for_decoder();
              REQUIRE(pc.drain() == CUPTI_SUCCESS && pc.samples() == 100);
              REQUIRE(pc.records[0].crc == crc.cubinCrc && crc.cubinCrc < uint64_t{1} << 32););
}

TEST_F(PcSampling, SerializedSamplesCarryTheLaunch) {
  EXPECT_FINE(
      one_sample_a_microsecond(); start(); CUfunction f = function("k"); PcClient pc;
      in_launch_exit(f,
                     [&] {
                       REQUIRE(pc.enable() == CUPTI_SUCCESS);
                       REQUIRE(pc.configure(10, kSerialized, true) == CUPTI_SUCCESS);
                       REQUIRE(pc.begin() == CUPTI_SUCCESS);
                     });
      client().callbacks.clear(); std::map<uint32_t, uint64_t> wanted;
      for (uint64_t i = 1; i <= 5; ++i) {
        launch(f, i * 100'000);
        wanted[client().callbacks.back().correlation] = i * 100;
      } in_launch_exit(f,
                       [&] { REQUIRE(pc.stop() == CUPTI_SUCCESS && pc.drain() == CUPTI_SUCCESS); });
      std::map<uint32_t, uint64_t> got; for (const PcRecord& r
                                             : pc.records) got[r.correlation] += r.stalls.at("");
      for (const auto& [correlation, samples]
           : wanted) REQUIRE(got[correlation] == samples););
}

TEST_F(PcSampling, SerializedKernelsRunOneAtATime) {
  EXPECT_FINE(start(); CUfunction f = function("k"); CUstream streams[2];
              for (auto& stream
                   : streams) cuStreamCreate(&stream, 0);
              PcClient pc;
              in_launch_exit(f,
                             [&] {
                               cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
                               REQUIRE(pc.enable() == CUPTI_SUCCESS);
                               REQUIRE(pc.configure(10, kSerialized, false) == CUPTI_SUCCESS);
                             });
              for (int i = 0; i < 10; ++i) launch(f, 200'000, streams[i % 2]); fake_cuda_drain();
              cuptiActivityFlushAll(0); REQUIRE(client().records.size() == 10);
              for (size_t i = 1; i < 10; ++i)
                  REQUIRE(client().records[i].start >= client().records[i - 1].end););
}

TEST_F(PcSampling, GraphsGiveNoDataInSerializedMode) {
  EXPECT_FINE(
      start(true, CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch);
      cuptiEnableCallback(1, client().subscriber, CUPTI_CB_DOMAIN_DRIVER_API, kLaunch);
      CUfunction f = function("k"); CUstream stream = nullptr; cuStreamCreate(&stream, 0);
      cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL); launch(f, 1'000'000, stream);
      CUgraph graph = nullptr; cuStreamEndCapture(stream, &graph); CUgraphExec exec = nullptr;
      cuGraphInstantiateWithFlags(&exec, graph, 0); for (const uint32_t mode
                                                         : {kSerialized, kContinuous}) {
        PcClient pc;
        in_launch_exit(f, [&] {
          REQUIRE(pc.enable() == CUPTI_SUCCESS);
          REQUIRE(pc.configure(10, mode, true) == CUPTI_SUCCESS && pc.begin() == CUPTI_SUCCESS);
        });
        REQUIRE(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
        fake_cuda_drain();
        in_launch_exit(f, [&] {
          REQUIRE(pc.stop() == CUPTI_SUCCESS && pc.drain() == CUPTI_SUCCESS);
          REQUIRE(pc.disable() == CUPTI_SUCCESS);
        });
        REQUIRE((pc.samples() > 10'000) == (mode == kContinuous));
      });
}

// Stop decodes what there is, Disable drops what was not fetched.
TEST_F(PcSampling, WhatADisableFindsUnfetchedIsGone) {
  EXPECT_FINE(start(); CUfunction f = function("k"); PcClient pc;
              in_launch_exit(f,
                             [&] {
                               REQUIRE(pc.enable() == CUPTI_SUCCESS);
                               REQUIRE(pc.configure(12, kContinuous, true) == CUPTI_SUCCESS);
                               REQUIRE(pc.begin() == CUPTI_SUCCESS);
                             });
              launch(f, 20'000'000); fake_cuda_drain(); in_launch_exit(f, [&] {
                REQUIRE(pc.drain() == CUPTI_SUCCESS && pc.records.empty());
                REQUIRE(pc.stop() == CUPTI_SUCCESS && pc.disable() == CUPTI_SUCCESS);
                REQUIRE(pc.drain() == CUPTI_ERROR_INVALID_OPERATION && pc.records.empty());
              }););
}

TEST_F(PcSampling, SmallBuffersAreToldWhatRemains) {
  EXPECT_FINE(start(); CUfunction f = function("k");
              REQUIRE(fake_cuda_pcs(f, "0:wait 16:wait 32:wait 48:wait 64:wait") == 0);
              PcClient pc(2);
              in_launch_exit(f,
                             [&] {
                               REQUIRE(pc.enable() == CUPTI_SUCCESS &&
                                       pc.configure(10, kContinuous, true) == CUPTI_SUCCESS);
                               REQUIRE(pc.begin() == CUPTI_SUCCESS);
                             });
              launch(f, 1'000'000); fake_cuda_drain(); in_launch_exit(
                  f,
                  [&] {
                    REQUIRE(pc.stop() == CUPTI_SUCCESS);
                    for (const size_t remaining : {3u, 1u, 0u}) {
                      REQUIRE(pc.drain() == CUPTI_SUCCESS && pc.data.remainingNumPcs == remaining);
                    }
                  });
              REQUIRE(pc.records.size() == 5););
}

TEST_F(PcSampling, FullHardwareBufferHealsByDisableAndEnable) {
  EXPECT_FINE(
      start(); CUfunction f = function("k"); PcClient pc; for (int round = 0; round < 2; ++round) {
        in_launch_exit(f, [&] {
          REQUIRE(pc.enable() == CUPTI_SUCCESS);
          REQUIRE(pc.configure(5, kContinuous, true) == CUPTI_SUCCESS);
          REQUIRE(pc.begin() == CUPTI_SUCCESS);
        });
        launch(f, 20'000'000);
        fake_cuda_drain();
        in_launch_exit(f, [&] {
          REQUIRE(pc.stop() == CUPTI_SUCCESS);
          for (int i = 0; i < 2; ++i) {
            REQUIRE(pc.drain() == CUPTI_ERROR_OUT_OF_MEMORY && pc.data.hardwareBufferFull == 1);
            REQUIRE(pc.data.totalNumPcs == 0);
          }
          REQUIRE(pc.disable() == CUPTI_SUCCESS);
        });
      } in_launch_exit(f,
                       [&] {
                         REQUIRE(pc.enable() == CUPTI_SUCCESS &&
                                 pc.configure(12, kContinuous, true) == CUPTI_SUCCESS);
                         REQUIRE(pc.begin() == CUPTI_SUCCESS);
                       });
      launch(f, 20'000'000); fake_cuda_drain(); in_launch_exit(f, [&] {
        REQUIRE(pc.stop() == CUPTI_SUCCESS && pc.drain() == CUPTI_SUCCESS);
        REQUIRE(pc.data.hardwareBufferFull == 0 && pc.samples() > 1000);
      }););
}

void sample_with(const char* api, size_t stride, size_t data_size) {
  setenv("FAKE_CUDA_API", api, 1);
  setenv("FAKE_CUDA_DRIVER", "12080", 1);
  start();
  CUfunction f = function("k");
  PcClient pc(8, stride, data_size);
  in_launch_exit(f, [&] {
    REQUIRE(pc.enable() == CUPTI_SUCCESS && pc.configure(10, kSerialized, true) == CUPTI_SUCCESS);
    REQUIRE(pc.begin() == CUPTI_SUCCESS);
  });
  launch(f, 1'000'000);
  in_launch_exit(f, [&] { REQUIRE(pc.stop() == CUPTI_SUCCESS && pc.drain() == CUPTI_SUCCESS); });
  REQUIRE(pc.records.size() >= 5 && pc.records[1].function == "k");
  REQUIRE((pc.records[0].correlation != 0) == (stride == 64));
  finish();
}

TEST_F(PcSampling, RecordsHaveTheVersionsSize) {
  EXPECT_EXIT(sample_with("18", 56, 72), ExitedWithCode(0), "");
  EXPECT_EXIT(sample_with("21", 56, 80), ExitedWithCode(0), "");
  EXPECT_EXIT(sample_with("26", 64, 80), ExitedWithCode(0), "");
  EXPECT_EXIT(sample_with("26", 56, 80), ExitedWithCode(7), "violation pc-records");
  EXPECT_EXIT(sample_with("18", 56, 80), ExitedWithCode(7), "");  // GetData refuses the size
}

TEST_F(PcSampling, DropsAndNonUserWorkAreCounted) {
  EXPECT_FINE(one_sample_a_microsecond(); setenv("FAKE_CUDA_PC_DROP_EVERY", "10", 1); start();
              CUfunction f = function("k"); PcClient pc;
              in_launch_exit(f,
                             [&] {
                               REQUIRE(pc.enable() == CUPTI_SUCCESS &&
                                       pc.configure(10, kContinuous, true) == CUPTI_SUCCESS);
                               REQUIRE(pc.begin() == CUPTI_SUCCESS);
                             });
              launch(f, 1'000'000); cuMemsetD8Async(0, 0, 9'900'000, nullptr);  // 100 µs
              fake_cuda_drain(); in_launch_exit(
                  f, [&] { REQUIRE(pc.stop() == CUPTI_SUCCESS && pc.drain() == CUPTI_SUCCESS); });
              REQUIRE(pc.data.totalSamples == 1100 && pc.data.droppedSamples == 100);
              REQUIRE(pc.data.nonUsrKernelsTotalSamples == 100 && pc.samples() == 900););
}

TEST_F(PcSampling, OddDevicesNumberTheReasonsBackwards) {
  EXPECT_FINE(setenv("FAKE_CUDA_DEVICES", "2", 1); start(); PcClient first; PcClient second;
              cuDevicePrimaryCtxRetain(&second.context, 1); first.read_names(); second.read_names();
              REQUIRE(first.names[0] == "smsp__pcsamp_sample_count");
              REQUIRE(second.names[39] == "smsp__pcsamp_sample_count" && second.names.size() == 40);
              REQUIRE(first.enable() == CUPTI_SUCCESS && second.enable() == CUPTI_SUCCESS););
}

TEST_F(PcSampling, RefusalsOnDemand) {
  EXPECT_FINE(
      setenv("FAKE_CUDA_PC_FAIL", "1:35", 1); start(); PcClient pc;
      REQUIRE(pc.enable() == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES);
      fake_cuda_set("pc_fail", "5:999"); fake_cuda_set("pc_attribute_fail", "4:7");
      REQUIRE(pc.enable() == CUPTI_SUCCESS && pc.enable() == CUPTI_ERROR_INVALID_OPERATION);
      std::vector<CUpti_PCSamplingConfigurationInfo> infos(2);
      infos[0].attributeType = CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_HARDWARE_BUFFER_SIZE;
      infos[1].attributeType = CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_SAMPLING_PERIOD;
      infos[1].attributeData.samplingPeriodData.samplingPeriod = 3;
      REQUIRE(pc.configure(infos) == CUPTI_SUCCESS);
      REQUIRE(pc.status[0] == CUPTI_ERROR_INVALID_OPERATION);
      REQUIRE(pc.status[1] == CUPTI_ERROR_INVALID_OPERATION && pc.period() == 17);
      REQUIRE(pc.drain() == CUPTI_ERROR_UNKNOWN); CUcontext other = nullptr;
      cuCtxCreate(&other, nullptr, 0, 0); PcClient second; second.context = other;
      REQUIRE(second.enable() == CUPTI_ERROR_INVALID_OPERATION);  // one context of a GPU at a time
      REQUIRE(pc.disable() == CUPTI_SUCCESS && second.enable() == CUPTI_SUCCESS););
}

TEST_F(PcSampling, BlackwellWantsItsDefaults) {
  EXPECT_FINE(setenv("FAKE_CUDA_CC", "120", 1); start(); CUfunction f = function("k"); PcClient pc;
              const auto window =
                  [&](bool period, bool buffer) {
                    CUpti_PCSamplingConfigurationInfo info{};
                    in_launch_exit(f, [&] {
                      REQUIRE(pc.enable() == CUPTI_SUCCESS);
                      info.attributeType =
                          CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_SAMPLING_PERIOD;
                      info.attributeData.samplingPeriodData.samplingPeriod = 12;
                      if (period) pc.configure({info});
                      info.attributeType =
                          CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_HARDWARE_BUFFER_SIZE;
                      info.attributeData.hardwareBufferSizeData.hardwareBufferSize = 128 << 20;
                      if (buffer) pc.configure({info});
                      info.attributeType =
                          CUPTI_PC_SAMPLING_CONFIGURATION_ATTR_TYPE_ENABLE_START_STOP_CONTROL;
                      info.attributeData.enableStartStopControlData.enableStartStopControl = 1;
                      REQUIRE(pc.configure({info}) == CUPTI_SUCCESS && pc.begin() == CUPTI_SUCCESS);
                    });
                    launch(f, 10'000'000);
                    fake_cuda_drain();
                    CUptiResult result = CUPTI_SUCCESS;
                    pc.records.clear();
                    in_launch_exit(f, [&] {
                      REQUIRE(pc.stop() == CUPTI_SUCCESS);
                      result = pc.drain();
                      REQUIRE(pc.disable() == CUPTI_SUCCESS);
                    });
                    return result;
                  };
              REQUIRE(window(false, false) == CUPTI_SUCCESS && pc.samples() > 100);
              REQUIRE(window(true, false) == CUPTI_SUCCESS && pc.samples() == 0);
              REQUIRE(window(false, true) == CUPTI_ERROR_OUT_OF_MEMORY););
}

std::string read_file(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST_F(PcSampling, TruthHasWhatWasDelivered) {
  EXPECT_FINE(
      one_sample_a_microsecond(); start(); CUfunction f = function("kernel_b");
      REQUIRE(fake_cuda_pcs(f, "0x30:barrier*2/1") == 0); PcClient pc;
      in_launch_exit(f,
                     [&] {
                       REQUIRE(pc.enable() == CUPTI_SUCCESS &&
                               pc.configure(10, kContinuous, true) == CUPTI_SUCCESS);
                       REQUIRE(pc.begin() == CUPTI_SUCCESS);
                     });
      fake_cuda_label("main;work"); launch(f, 300'000); fake_cuda_drain(); fake_cuda_label(nullptr);
      in_launch_exit(f,
                     [&] { REQUIRE(pc.stop() == CUPTI_SUCCESS && pc.drain() == CUPTI_SUCCESS); });
      const std::string path = "/tmp/fake_cuda_pc_truth." + std::to_string(getpid());
      REQUIRE(fake_cuda_write_truth(path.c_str()) == 0); const std::string truth = read_file(path);
      unlink(path.c_str()); REQUIRE(truth.find("\"pc_delivered\":300,") != std::string::npos);
      REQUIRE(truth.find("\"stack\":[\"main\",\"work\"],\"kernel\":\"kernel_b\"") !=
              std::string::npos);
      REQUIRE(truth.find("\"pc\":48,\"stall\":\"barrier\",\"mode\":\"continuous\",\"device\":0,"
                         "\"sampled\":300,\"delivered\":300,\"not_issued\":150}") !=
              std::string::npos););
}

TEST_F(PcSampling, MistakesInADistribution) {
  EXPECT_FINE(start(); CUfunction f = function("k");
              for (const char* bad
                   : {"", "wait", "0x10:nonsense", "0x10:wait*0", "0x10:wait*2/3", "5:wait"})
                  REQUIRE(fake_cuda_pcs(f, bad) == -1);
              REQUIRE(fake_cuda_pcs(f, "!5:wait") == 0););
}

}  // namespace
}  // namespace fakecuda

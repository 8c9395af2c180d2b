// SPDX-License-Identifier: Apache-2.0
// What the shim says where it cannot work, and that the application runs on.
#include <cuda.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "tests/unit/shim/driver_calls.h"
#include "tests/unit/shim/probe_tap.h"
#include "tests/unit/shim/target_process.h"

namespace gpuprof::testing {
namespace {

/// Runs a target that must decline with `reason`; answers what it wrote to stderr.
std::string declined(const Environment& environment, gpuprof_reason reason) {
  const Outcome outcome = run_target(environment, [reason] {
    start_driver();
    const ShimView shim;
    ASSERT_TRUE(shim.exists());
    EXPECT_EQ(shim.status().state, GPUPROF_STATE_DECLINED);
    EXPECT_EQ(shim.status().reason, static_cast<uint32_t>(reason)) << shim.reason_text();
    const auto processes = ProbeTap::records<gpuprof_process_v1>(GPUPROF_PROBE_PROCESS);
    ASSERT_EQ(processes.size(), 1u);
    EXPECT_EQ(processes[0].state, static_cast<uint32_t>(GPUPROF_STATE_DECLINED));
    CUfunction function = load_function("k");
    for (int i = 0; i < 10; ++i) launch(function);
    EXPECT_TRUE(ProbeTap::launches().empty());
  });
  EXPECT_CLEAN(outcome);
  return outcome.error;
}

void expect_one_line(const std::string& text, const char* part) {
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  EXPECT_NE(text.find("runs unprofiled"), std::string::npos) << text;
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(CuptiDecline, MissingLibraryNamesThePathAndTheError) {
  const std::string line =
      declined({{"GPU_PROFILED_CUPTI_PATH", "/nowhere/libcupti.so.13"}}, GPUPROF_REASON_NO_CUPTI);
  expect_one_line(line, "/nowhere/libcupti.so.13: not found");
  expect_one_line(line, "not with the driver");
  expect_one_line(line, "container toolkit");
}

TEST(CuptiDecline, APipeIsNotLoaded) {
  char directory[] = "/tmp/gpuprof-pipe-XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  const std::string pipe = std::string(directory) + "/libcupti.so.13";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const std::string line = declined({{"GPU_PROFILED_CUPTI_PATH", pipe}}, GPUPROF_REASON_NO_CUPTI);
  expect_one_line(line, "neither a file nor a directory");
  unlink(pipe.c_str());
  rmdir(directory);
}

TEST(CuptiDecline, NothingFoundNamesEverySoname) {
  // Not even the real CUPTI of a developer's machine: the driver is older than all of them.
  const std::string line = declined(
      {{"GPU_PROFILED_CUPTI_PATH", ""}, {"FAKE_CUDA_DRIVER", "11040"}}, GPUPROF_REASON_NO_CUPTI);
  expect_one_line(line, "libcupti.so.13, libcupti.so.12: not tried, newer");
  // Where there is no toolkit its folders follow in the same breath.
  expect_one_line(line, "; libcupti.so.11.8");
  expect_one_line(line, ": not found");
}

TEST(CuptiDecline, DirectoryWithOnlyANewerCupti) {
  const std::string line = declined({{"FAKE_CUDA_DRIVER", "12080"}}, GPUPROF_REASON_NO_CUPTI);
  expect_one_line(line, "/libcupti.so.13: newer than the driver's CUDA 12.8");
}

TEST(CuptiDecline, FileNewerThanTheDriver) {
  const std::string line = declined({{"FAKE_CUDA_DRIVER", "12080"},
                                     {"GPU_PROFILED_CUPTI_PATH", FAKE_CUPTI_DIR "/libcupti.so.13"}},
                                    GPUPROF_REASON_CUPTI_NEWER_THAN_DRIVER);
  expect_one_line(line, "newer than the driver (CUDA 12.8)");
}

TEST(CuptiDecline, TooOld) {
  const std::string line = declined({{"FAKE_CUDA_API", "17"}}, GPUPROF_REASON_CUPTI_TOO_OLD);
  expect_one_line(line, "API version 17");
}

TEST(CuptiDecline, MissingFunctionIsNamed) {
  const std::string line =
      declined({{"GPU_PROFILED_CUPTI_PATH", STUB_CUPTI}}, GPUPROF_REASON_MISSING_SYMBOL);
  expect_one_line(line, "lacks cuptiActivityFlushAll");
}

TEST(CuptiDecline, DisabledIsSilent) {
  EXPECT_EQ(declined({{"GPU_PROFILED_DISABLE", "1"}}, GPUPROF_REASON_DISABLED), "");
}

TEST(CuptiDecline, SilentWhereAllIsWell) {
  const Outcome outcome = run_target({}, [] {
    start_driver();
    const ShimView shim;
    EXPECT_EQ(shim.status().state, GPUPROF_STATE_IDLE);
    EXPECT_STREQ(shim.status().cupti_path, FAKE_CUPTI_DIR "/libcupti.so.13");
    EXPECT_EQ(shim.status().cupti_version, 130001u);
    EXPECT_EQ(shim.status().driver_version, 13000u);
    EXPECT_NE(std::string(shim.status().libcuda_path).find("libcuda.so.1"), std::string::npos);
    EXPECT_NE(shim.status().libcuda_kind, static_cast<uint32_t>(GPUPROF_LIBCUDA_UNKNOWN));
  });
  EXPECT_CLEAN(outcome);
  EXPECT_EQ(outcome.error, "");
}

}  // namespace
}  // namespace gpuprof::testing

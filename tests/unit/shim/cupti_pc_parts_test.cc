// SPDX-License-Identifier: Apache-2.0
// The parts of PC sampling without a process: layouts by version, names, answers.
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "shim/cupti/pc_buffers.h"
#include "shim/cupti/pc_reason.h"
#include "shim/cupti/pc_records.h"
#include "shim/cupti/pc_sight.h"

namespace gpuprof::cupti {
namespace {

TEST(PcRecords, SizesAreThoseOfTheRunningVersion) {
  EXPECT_EQ(pc_record_bytes(18), 56u);  // 11.8
  EXPECT_EQ(pc_record_bytes(21), 56u);  // 12.3
  EXPECT_EQ(pc_record_bytes(22), 64u);  // 12.4
  EXPECT_EQ(pc_record_bytes(28), 64u);
  EXPECT_EQ(pc_record_bytes(130001), 64u);
  EXPECT_EQ(sampling_data_bytes(18), 72u);
  EXPECT_EQ(sampling_data_bytes(19), 80u);  // 12.0
  EXPECT_EQ(sampling_data_bytes(130001), 80u);
}

class PcLayout : public ::testing::TestWithParam<uint32_t> {};

TEST_P(PcLayout, RecordsLieAtTheVersionsStrideEachWithRoomOfItsOwn) {
  const uint32_t version = GetParam();
  constexpr uint32_t kStalls = 40;
  PcBuffers buffers;
  ASSERT_EQ(buffers.create(), shim::Status::kOk);
  buffers.lay_out(version, kStalls);
  for (SamplingData* data : {&buffers.drained(), &buffers.registered()}) {
    EXPECT_EQ(data->size, sampling_data_bytes(version));
    EXPECT_EQ(data->capacity, PcBuffers::kRecords);
    for (uint32_t i = 0; i < PcBuffers::kRecords; ++i) {
      const PcRecord& record = buffers.record(*data, i);
      ASSERT_EQ(reinterpret_cast<const char*>(&record),
                static_cast<char*>(data->records) + i * pc_record_bytes(version));
      ASSERT_EQ(record.size, pc_record_bytes(version));
      // CUPTI may fill all of it: what it writes must stay between its neighbours.
      for (uint32_t k = 0; k < kStalls; ++k) record.stalls[k] = {i, k};
    }
    for (uint32_t i = 0; i < PcBuffers::kRecords; ++i) {
      const PcRecord& record = buffers.record(*data, i);
      ASSERT_EQ(record.size, pc_record_bytes(version)) << "overwritten";
      for (uint32_t k = 0; k < kStalls; ++k) {
        ASSERT_EQ(record.stalls[k].index, i);
        ASSERT_EQ(record.stalls[k].samples, k);
      }
    }
  }
  EXPECT_NE(buffers.drained().records, buffers.registered().records);
}

INSTANTIATE_TEST_SUITE_P(Versions, PcLayout, ::testing::Values(18u, 21u, 22u, 28u, 130001u));

TEST(PcRecords, ACountBeyondTheRoomIsBounded) {
  PcBuffers buffers;
  ASSERT_EQ(buffers.create(), shim::Status::kOk);
  buffers.lay_out(130001, 40);
  PcRecord record = buffers.record(buffers.drained(), 0);
  record.stall_count = 1'000'000;
  EXPECT_EQ(buffers.stalls_of(record), 40u);
  record.stall_count = 3;
  EXPECT_EQ(buffers.stalls_of(record), 3u);
}

TEST(PcRecords, WhatAStallCounts) {
  EXPECT_EQ(stall_class("smsp__pcsamp_warps_issue_stalled_wait"), StallClass::kStalled);
  EXPECT_EQ(stall_class("smsp__pcsamp_warps_issue_stalled_wait_not_issued"),
            StallClass::kNotIssued);
  EXPECT_EQ(stall_class("smsp__pcsamp_sample_count"), StallClass::kOther);
  EXPECT_EQ(stall_class("smsp__pcsamp_samples_data_dropped"), StallClass::kOther);
  EXPECT_EQ(stall_class(""), StallClass::kOther);
}

TEST(PcSight, KernelsThatWaitForOtherRanks) {
  EXPECT_TRUE(is_collective("_Z45ncclDevKernel_AllReduce_Sum_f32_RING_LLP11ncclDevComm"));
  EXPECT_TRUE(is_collective("_Z32ncclKernel_AllReduce_RING_LL_Sum_floatP11ncclDevComm"));
  EXPECT_TRUE(is_collective("_Z38ncclSymkDevKernel_AllReduce_AGxLL_RPK"));
  EXPECT_TRUE(is_collective("_ZN4c10d30two_shot_all_reduce_kernel_implIfLi16EEEv"));
  EXPECT_TRUE(is_collective("nvshmemi_transfer_rma"));
  EXPECT_TRUE(is_collective("_ZN4vllm26cross_device_reduce_1stageI6__halfLi2EEEv"));
  EXPECT_FALSE(is_collective("_Z6gemm_kPfS_i"));
  EXPECT_FALSE(is_collective(""));
  EXPECT_FALSE(is_collective(nullptr));
}

TEST(PcReason, UnspecificAnswersAreExplainedByWhatIsKnown) {
  PcSurroundings around;
  PcRefusal refusal;
  explain("step", CUPTI_ERROR_UNKNOWN, "text", around, &refusal);
  EXPECT_EQ(refusal.reason, GPUPROF_PC_REASON_FAILED);
  EXPECT_TRUE(refusal.heals);
  around.compute_major = 7;  // 7.0: not on CUDA 13
  explain("step", CUPTI_ERROR_NOT_SUPPORTED, "text", around, &refusal);
  EXPECT_EQ(refusal.reason, GPUPROF_PC_REASON_GPU_TOO_OLD);
  EXPECT_FALSE(refusal.heals);
  around.mps = true;
  explain("step", CUPTI_ERROR_NOT_SUPPORTED, "text", around, &refusal);
  EXPECT_EQ(refusal.reason, GPUPROF_PC_REASON_MPS);
  around.admin_only = 1;
  explain("step", CUPTI_ERROR_INSUFFICIENT_PRIVILEGES, "text", around, &refusal);
  EXPECT_EQ(refusal.reason, GPUPROF_PC_REASON_PRIVILEGE);
  EXPECT_NE(strstr(refusal.text, "RmProfilingAdminOnly: 1"), nullptr) << refusal.text;
}

}  // namespace
}  // namespace gpuprof::cupti

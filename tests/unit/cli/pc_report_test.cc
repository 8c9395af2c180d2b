// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/pc_report.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace gpuprof::cli {
namespace {

PcResult some() {
  PcResult out;
  out.accounting.records = 3;
  out.accounting.counts = 1500;
  out.accounting.samples = 1000;
  out.accounting.not_issued = 500;
  out.accounting.attrib[static_cast<size_t>(join::PcAttrib::kKernel)] = 900;
  out.accounting.attrib[static_cast<size_t>(join::PcAttrib::kUnattributed)] = 100;
  out.sources.by_status[static_cast<size_t>(cubin::SourceStatus::kResolved)] = 750;
  out.sources.by_status[static_cast<size_t>(cubin::SourceStatus::kNoModule)] = 250;
  out.cubins.sampled = 3;
  out.cubins.read = 2;
  out.cubins.failed[static_cast<size_t>(target::ModuleFailure::kGone)] = 1;
  out.period = 12;
  return out;
}

std::string flat(std::string text) {
  std::erase_if(text, [](char c) { return c == '\n' || c == ' '; });
  return text;
}

std::string json_of(const target::PcStatus& pc, const PcCounters& before) {
  Options options;
  options.tier = GPUPROF_TIER_CONTINUOUS;
  JsonWriter json;
  json.begin_object();
  target::GpuUse gpu;
  gpu.gpu.fill(0x11);
  gpu.device = 2;
  gpu.sampled_ns = 5;
  gpu.waited_ns = 6;
  gpu.taken_by = 77;
  write_pc_sampling(json, options, pc, before, {gpu, {}}, some());
  json.end_object();
  return flat(json.take());
}

TEST(PcReport, RowsForPeople) {
  const auto rows = pc_rows(some());
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].second, "1,000, one every 2^12 cycles");
  EXPECT_EQ(rows[1].second, "resolved 75.0 %, no-module 25.0 %");
  EXPECT_EQ(rows[2].second, "kernel 90.0 %, unattributed 10.0 %");
  for (const auto& [name, text] : rows)
    EXPECT_LT(std::string(name).size(), 12u) << "the column's width";
  EXPECT_EQ(pc_rows({}).size(), 1u) << "without samples there is no share to tell";
}

TEST(PcReport, JsonTellsEveryBucket) {
  target::PcStatus pc;
  pc.state = GPUPROF_PC_ON;
  pc.counters[GPUPROF_PC_COUNT_SAMPLES] = 1200;
  pc.counters[GPUPROF_PC_COUNT_WINDOWS] = 5;
  PcCounters before{};
  before[GPUPROF_PC_COUNT_SAMPLES] = 200;
  before[GPUPROF_PC_COUNT_WINDOWS] = 7;  // of a page that lies
  const std::string json = json_of(pc, before);
  for (
      const char* part :
      {R"("asked":"continuous","state":"on","reason":"none")", R"("period_log2_cycles":12)",
       R"("gpus":[{"id":2,"uuid":"GPU-11111111-1111-1111-1111-111111111111","sampled_ns":5,)",
       R"("waited_ns":6,"taken_by":77},{"id":0,"uuid":"","sampled_ns":0,"waited_ns":0,"taken_by":null}])",
       R"("shim":{"samples":1000,"windows":0,)", R"("records":{"produced":null,"received":3,)",
       R"("samples":1000,"not_issued":500,)", R"("kernel":900,)", R"("unattributed":100})",
       R"("resolved":750,"no-lineinfo":0,"no-module":250,"unmapped":0,"folded":0)",
       R"("failed":{"foreign-key":0,"gone":1,)", R"("identity_holds":true)"})
    EXPECT_NE(json.find(part), std::string::npos) << part << "\n" << json;
}

TEST(PcReport, ARefusalHasItsReasonAndItsText) {
  target::PcStatus pc;
  pc.state = GPUPROF_PC_REFUSED;
  pc.reason = GPUPROF_PC_REASON_PRIVILEGE;
  pc.reason_text = "load the module with X";
  const std::string json = json_of(pc, {});
  EXPECT_NE(json.find(R"("state":"refused","reason":"privilege","text":"loadthemodulewithX")"),
            std::string::npos)
      << json;
}

TEST(PcReport, AGpuThatAnotherProcessHasIsToldInOneLine) {
  target::GpuUse use;
  use.device = 3;
  EXPECT_EQ(gpu_line(42, use), "");
  use.taken_by = 77;
  use.waited_ns = 400'000'000;
  EXPECT_EQ(
      gpu_line(42, use),
      "process 42: GPU 3 is PC-sampled in process 77; one process a GPU at a time; this one is "
      "traced: use --pid 42 alone to sample it");
  use.sampled_ns = 2'000'000'000;
  EXPECT_EQ(gpu_line(42, use), "") << "a moment";
  use.waited_ns = 3'000'000'000;
  EXPECT_EQ(gpu_line(42, use),
            "process 42: GPU 3 was PC-sampled in process 77 for 3.0 s, and here for 2.0 s; one "
            "process a GPU at a time");
}

TEST(PcReport, TheTotalIsTheSum) {
  PcResult sum = some();
  sum += some();
  EXPECT_EQ(sum.accounting.samples, 2000u);
  EXPECT_EQ(sum.sources.of(cubin::SourceStatus::kResolved), 1500u);
  EXPECT_EQ(sum.cubins.sampled, 6u);
  EXPECT_EQ(sum.cubins.failed[static_cast<size_t>(target::ModuleFailure::kGone)], 2u);
  EXPECT_EQ(sum.accounting.check(), "");
}

}  // namespace
}  // namespace gpuprof::cli

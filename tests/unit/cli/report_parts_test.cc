// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/report_parts.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>

namespace gpuprof::cli {
namespace {

std::string accounting_json(const join::Accounting& account) {
  JsonWriter json;
  json.begin_object();
  write_accounting(json, account);
  json.end_object();
  return json.take();
}

TEST(ReportParts, AnUnknownProductionIsNull) {
  join::Accounting account;
  account.received = account.exact = 3;
  std::string json = accounting_json(account);
  EXPECT_NE(json.find("\"produced\": null"), std::string::npos) << json;
  EXPECT_NE(json.find("\"identity_holds\": null"), std::string::npos) << json;
  account.emitted = 3;
  json = accounting_json(account);
  EXPECT_NE(json.find("\"produced\": 3"), std::string::npos) << json;
  EXPECT_NE(json.find("\"identity_holds\": true"), std::string::npos) << json;
  account.emitted = 4;
  json = accounting_json(account);
  EXPECT_NE(json.find("\"identity_holds\": false"), std::string::npos) << json;
  EXPECT_NE(json.find("\"identity_broken\": \"produced 4"), std::string::npos) << json;
}

TEST(ReportParts, EveryCounterOfTheBpfProgramsIsInTheSummary) {
  probe::ProbeCounters counters;
  for (size_t i = 0; i < counters.bpf.size(); ++i) counters.bpf[i] = 1000 + i;
  JsonWriter json;
  write_rings(json, counters);
  const std::string text = json.take();
  for (size_t i = 0; i < counters.bpf.size(); ++i)
    EXPECT_NE(text.find(": " + std::to_string(1000 + i)), std::string::npos) << i << text;
  EXPECT_NE(text.find("\"watch_full\": 1012"), std::string::npos) << text;
  EXPECT_NE(text.find("\"invisible_task\": 1002"), std::string::npos) << text;
  EXPECT_NE(text.find("\"bad_count\": 1009"), std::string::npos) << text;
}

TEST(ReportParts, EveryCounterOfTheJoinIsInTheSummary) {
  std::array<uint64_t, sizeof(join::JoinStats) / sizeof(uint64_t)> values;
  for (size_t i = 0; i < values.size(); ++i) values[i] = 1000 + i;
  const auto stats = std::bit_cast<join::JoinStats>(values);
  JsonWriter json;
  json.begin_object();
  write_join(json, stats);
  json.end_object();
  const std::string text = json.take();
  for (const uint64_t value : values)
    EXPECT_NE(text.find(": " + std::to_string(value)), std::string::npos) << value << text;
  EXPECT_NE(text.find("\"executions_beside_another\": " +
                      std::to_string(stats.executions_beside_another)),
            std::string::npos)
      << text;
}

TEST(ReportParts, FramesByFramePointerAreToldWhereThereAreAny) {
  EXPECT_EQ(stacks_text(2'000, 1'000, 0), "2,000 taken, 50.0 % whole");
  EXPECT_EQ(stacks_text(2, 2, 1), "2 taken, 100.0 % whole, 1 frame by frame pointer alone");
  EXPECT_EQ(stacks_text(2, 2, 1'234),
            "2 taken, 100.0 % whole, 1,234 frames by frame pointer alone");
}

TEST(ReportParts, ExecutionsThatShareALaunchAreTold) {
  join::JoinStats stats;
  EXPECT_EQ(not_exact(stats), "");
  stats.executions_beside_another = 1;
  EXPECT_EQ(not_exact(stats), "1 execution of launches that had one already");
  stats.executions_beside_another = 1'234;
  EXPECT_EQ(not_exact(stats), "1,234 executions of launches that had one already");
  stats.executions_of_another = 1;
  EXPECT_EQ(not_exact(stats),
            "1,234 executions of launches that had one already; 1 execution with the id of another "
            "kernel's launch");
  stats.executions_beside_another = 0;
  EXPECT_EQ(not_exact(stats), "1 execution with the id of another kernel's launch");
}

TEST(ReportParts, WhoWasNotSeenIsTold) {
  probe::ProbeCounters counters;
  counters.bpf[GPUPROF_BPF_FIRED] = counters.bpf[GPUPROF_BPF_IGNORED_PROCESS] = 5;
  EXPECT_EQ(not_seen(counters), "");
  counters.bpf[GPUPROF_BPF_WATCH_FULL] = 1;
  EXPECT_EQ(not_seen(counters), "1 child process beyond the most that are watched at a time");
  counters.bpf[GPUPROF_BPF_INVISIBLE_TASK] = 2;
  EXPECT_NE(not_seen(counters).find("; 2 batches of processes outside"), std::string::npos);
}

TEST(ReportParts, TheCudaDriverOfEachProcess) {
  target::CudaDriver driver;
  CudaDriverLines lines;
  lines.add(1, driver);  // none mapped
  EXPECT_TRUE(lines.lines().empty());
  driver.kind = GPUPROF_LIBCUDA_COMPAT;
  driver.path = "/usr/local/cuda/compat/libcuda.so.580.95.05";
  driver.release = "580.95.05";
  driver.kernel_module = "535.216.01";
  driver.cuda_version = 13000;
  lines.add(7, driver);
  lines.add(9, driver);
  lines.add(10, driver);
  JsonWriter json;
  write_cuda_driver(json, driver);
  const std::string text = json.take();
  for (const char* part : {"\"kind\": \"cuda_compat\"", "\"cuda\": \"13.0\"",
                           "\"release\": \"580.95.05\"", "\"kernel_module\": \"535.216.01\""})
    EXPECT_NE(text.find(part), std::string::npos) << part << text;
  driver.kind = GPUPROF_LIBCUDA_SYSTEM;
  driver.path = "/usr/lib/libcuda.so.535.216.01";
  driver.cuda_version = 12020;
  lines.add(8, driver);
  const std::vector<std::string> want = {
      "processes 7 and 2 more: CUDA 13.0 by /usr/local/cuda/compat/libcuda.so.580.95.05 "
      "(cuda_compat), kernel module 535.216.01",
      "process 8: CUDA 12.2 by /usr/lib/libcuda.so.535.216.01 (system), kernel module 535.216.01"};
  EXPECT_EQ(lines.lines(), want);
}

}  // namespace
}  // namespace gpuprof::cli

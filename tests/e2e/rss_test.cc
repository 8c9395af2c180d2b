// SPDX-License-Identifier: Apache-2.0
//
// The daemon's memory over a long run: small, and the same at the end as after the start.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "tests/e2e/cli_fixture.h"

namespace gpuprof::e2e {
namespace {

using Clock = std::chrono::steady_clock;

class Rss : public CliTest {};

long status_kib(pid_t pid, const std::string& name) {
  const std::string status = read_file("/proc/" + std::to_string(pid) + "/status");
  const size_t at = status.find("\n" + name + ":");
  return at == std::string::npos ? 0 : std::atol(status.c_str() + at + name.size() + 2);
}

// GPU_PROFILED_TEST_RSS_SECONDS makes it longer than a minute.
TEST_F(Rss, FlatAt200kExecutionsASecond) {
  const char* wanted = std::getenv("GPU_PROFILED_TEST_RSS_SECONDS");
  const long seconds = wanted != nullptr ? std::atol(wanted) : 60;
  Child workload({WORKLOAD_PATH, "--threads", "4", "--launches", "0", "--seconds",
                  std::to_string(seconds + 60), "--rate", "50000"},
                 setup({injected()[0], "FAKE_CUDA_INSTANT=1"}));
  wait_until_mapped(workload.pid(), "libgpu-profiled-cupti.so");
  Child attach({GPU_PROFILED_PATH, "--pid", std::to_string(workload.pid()), "-o", "x.pb.gz",
                "--summary-json", "s.json"},
               setup());
  const auto begin = Clock::now();
  ::sleep(10);  // code paged in, stacks and names seen once
  std::vector<long> rss;
  while (Clock::now() - begin < std::chrono::seconds(seconds)) {
    rss.push_back(status_kib(attach.pid(), "VmRSS"));
    std::printf("%4.0f s: %ld KiB, of it anonymous %ld KiB\n",
                std::chrono::duration<double>(Clock::now() - begin).count(), rss.back(),
                status_kib(attach.pid(), "RssAnon"));
    std::fflush(stdout);
    ::sleep(5);
  }
  attach.send(SIGINT);
  const Outcome outcome = attach.finish();
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const std::string json = read_file(file("s.json"));
  const double rate = static_cast<double>(json_number(json, "total", "received")) * 1e9 /
                      static_cast<double>(json_number(json, "attach", "duration_ns"));
  std::printf("%.0f executions/s received\n%s", rate, outcome.err.c_str());
  EXPECT_GE(rate, 150'000) << "the load was not what this test is about";
  EXPECT_NE(json.find("\"identity_holds\": true"), std::string::npos) << json;
  ASSERT_GE(rss.size(), 3u);
  EXPECT_GT(rss.front(), 0);
  EXPECT_LE(*std::max_element(rss.begin(), rss.end()), 150 * 1024);
  // Pages of the rings that are touched for the first time in a burst are no growth.
  const size_t half = rss.size() / 2;
  const long early = *std::max_element(rss.begin(), rss.begin() + static_cast<long>(half));
  const long late = *std::max_element(rss.begin() + static_cast<long>(half), rss.end());
  EXPECT_LE(late - early, 4 * 1024) << "it grows";
}

}  // namespace
}  // namespace gpuprof::e2e

// SPDX-License-Identifier: Apache-2.0
//
// The daemon's memory over a long run: small, and the same at the end as after the start.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <regex>
#include <sstream>
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

// Seconds of processor time in fields `first` to `last` (from 0) of a line of /proc/stat or, behind
// the name, of /proc/PID/stat.
double processor_seconds(const std::string& line, int first, int last) {
  std::istringstream in(line);
  double ticks = 0;
  std::string field;
  for (int i = 0; i <= last && in >> field; ++i)
    if (i >= first) ticks += std::atof(field.c_str());
  return ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

// What everybody but `ours` has taken since boot: user, nice and system time, and what the host
// kept.
double taken_by_others(std::initializer_list<pid_t> ours) {
  const std::string all = read_file("/proc/stat");
  double taken = processor_seconds(all, 1, 3) + processor_seconds(all, 6, 8);
  for (const pid_t pid : ours) {
    const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
    taken -= processor_seconds(stat.substr(stat.rfind(')') + 1), 11, 12);
  }
  return taken;
}

// GPU_PROFILED_TEST_RSS_SECONDS makes it longer than a minute.
TEST_F(Rss, FlatAt200kExecutionsASecond) {
  const char* wanted = std::getenv("GPU_PROFILED_TEST_RSS_SECONDS");
  const long seconds = wanted != nullptr ? std::atol(wanted) : 60;
  Child workload({WORKLOAD_PATH, "--threads", "4", "--launches", "0", "--seconds",
                  std::to_string(seconds + 60), "--rate", "50000"},
                 setup({injected()[0], "FAKE_CUDA_INSTANT=1"}));
  wait_until_injected(workload.pid());
  Child attach({daemon_path(), "--pid", std::to_string(workload.pid()), "-o", "x.pb.gz",
                "--summary-json", "s.json"},
               setup());
  const auto begin = Clock::now();
  const double others_before = taken_by_others({workload.pid(), attach.pid()});
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
  const double others = (taken_by_others({workload.pid(), attach.pid()}) - others_before) /
                        std::chrono::duration<double>(Clock::now() - begin).count();
  attach.send(SIGINT);
  const Outcome outcome = attach.finish();
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const std::string json = read_file(file("s.json"));
  const double rate = static_cast<double>(json_number(json, "total", "received")) * 1e9 /
                      static_cast<double>(json_number(json, "attach", "duration_ns"));
  std::printf("%.0f executions/s received\n%s", rate, outcome.err.c_str());
  // On a machine that others use as well the rate tells of them.
  std::printf("others kept %.1f cores busy\n", others);
  if (others < 0.2) {
    EXPECT_GE(rate, 150'000) << "the load was not what this test is about";
  }
  EXPECT_NE(json.find("\"identity_holds\": true"), std::string::npos) << json;
  // By hand, where the machine is the test's own: nothing is lost at that rate.
  if (seconds >= 60) {
    EXPECT_TRUE(std::regex_search(outcome.err, std::regex("lost +nothing"))) << outcome.err;
  }
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

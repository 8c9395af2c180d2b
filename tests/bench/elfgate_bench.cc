// SPDX-License-Identifier: Apache-2.0
//
// One file's facts and the permissive policy on them, for every shared library of the system.
// Target: 10 ms a file; `max_cpu_ms` is the longest on a machine that does nothing else.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <string>
#include <vector>

#include "tools/elfgate/checks.h"
#include "tools/elfgate/read_facts.h"

namespace gpuprof::elfgate {
namespace {

std::vector<std::string> libraries() {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(LIBRARY_FOLDER)) {
    const std::string name = entry.path().filename();
    if (!entry.is_symlink() && entry.is_regular_file() && name.find(".so") != std::string::npos &&
        ElfImage::open(entry.path())) {
      files.push_back(entry.path());
    }
  }
  return files;
}

void check_one(const std::string& file, const Policy& policy, benchmark::State& state) {
  const auto image = ElfImage::open(file);
  const auto facts = image ? read_facts(*image) : Result<Facts>(fail(image.error()));
  if (!facts) return state.SkipWithError((file + ": " + facts.error()).c_str());
  benchmark::DoNotOptimize(check_file(*facts, policy, file));
}

double thread_cpu_ms() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

void check_system(benchmark::State& state) {
  using Clock = std::chrono::steady_clock;
  Policy policy;
  if (!add_policy_text(policy, default_policy_text(), "built in", ".")) {
    return state.SkipWithError("no policy");
  }
  const std::vector<std::string> files = libraries();
  if (files.empty()) return state.SkipWithError("no library in " LIBRARY_FOLDER);
  std::vector<double> times_ms;
  double max_cpu_ms = 0;
  for ([[maybe_unused]] auto iteration : state) {
    for (const std::string& file : files) {
      const double cpu_ms = thread_cpu_ms();
      const auto start = Clock::now();
      check_one(file, policy, state);
      times_ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
      max_cpu_ms = std::max(max_cpu_ms, thread_cpu_ms() - cpu_ms);
    }
  }
  std::sort(times_ms.begin(), times_ms.end());
  state.counters["files"] = static_cast<double>(files.size());
  state.counters["median_ms"] = times_ms[times_ms.size() / 2];
  state.counters["p99_ms"] = times_ms[times_ms.size() * 99 / 100];
  state.counters["max_ms"] = times_ms.back();
  state.counters["max_cpu_ms"] = max_cpu_ms;
}
BENCHMARK(check_system)->Unit(benchmark::kMillisecond)->Iterations(3);

}  // namespace
}  // namespace gpuprof::elfgate

BENCHMARK_MAIN();

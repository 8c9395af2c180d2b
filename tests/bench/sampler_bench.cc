// SPDX-License-Identifier: Apache-2.0
// What the sampler and the launch count add to one launch on the application's thread, at rates
// where almost none is drawn.
#include <benchmark/benchmark.h>

#include <thread>

#include "shim/core/sampler.h"

namespace {

// Handles of so many kernels in turn, spaced as a driver's allocations are.
void draw(benchmark::State& state) {
  const auto kernels = static_cast<uint64_t>(state.range(0));
  if (state.thread_index() == 0) gpuprof::shim::configure_sampler({.seed = 1});
  uint64_t weight = 0, i = 0, drawn = 0;
  for (auto _ : state) {
    const uint64_t function = 0x5581'2000'0000u + i % kernels * 0x2c0;
    if (++i == kernels) i = 0;
    drawn += gpuprof::shim::draw_launch(gpuprof::shim::stratum_key(1, 1, function), &weight);
  }
  state.counters["drawn"] = static_cast<double>(drawn) / static_cast<double>(state.iterations());
}

// The first launch of a thread, thread included, to compare with a thread that launches nothing.
void new_thread(benchmark::State& state) {
  const bool launches = state.range(0) != 0;
  for (auto _ : state) {
    std::thread([launches] {
      uint64_t weight = 0;
      if (launches) gpuprof::shim::draw_launch(gpuprof::shim::stratum_key(1, 1, 64), &weight);
    }).join();
  }
}

BENCHMARK(draw)->Arg(1)->Arg(20)->Arg(100)->Arg(1000);
BENCHMARK(draw)->Arg(20)->Threads(4)->UseRealTime();
BENCHMARK(new_thread)->Arg(0)->Arg(1)->UseRealTime();

}  // namespace

extern "C" __attribute__((visibility("default"))) int sampler_bench(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

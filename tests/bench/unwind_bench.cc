// SPDX-License-Identifier: Apache-2.0
// What one copied stack of 44 frames costs the daemon. Target: warm unwind with symbol lookup in at
// most 20 us, where libdwfl alone needs 18 to 31 [docs/hardware.md].
//   build/dev/tests/bench/unwind_bench
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "daemon/symbolize/symbolizer.h"
#include "daemon/unwind/address_space.h"
#include "daemon/unwind/file_cache.h"
#include "daemon/unwind/unwinder.h"
#include "tests/unit/unwind/capture.h"
#include "tests/unit/unwind/dwfl_reference.h"

extern "C" void chain_a(int depth, void (*leaf)(void*), void* arg);

namespace gpuprof {
namespace {

constexpr size_t kFrames = 44;

// A real stack of this process with exactly kFrames frames: main and what is below it included.
const unwind::test::Sample& sample() {
  static const unwind::test::Sample taken = [] {
    unwind::FileCache files;
    auto space = unwind::AddressSpace::open({static_cast<uint32_t>(getpid()), 0}, files);
    unwind::Unwinder unwinder(*space);
    unwind::test::Sample s;
    size_t frames = 0;
    for (int depth = 1; frames < kFrames; ++depth) {
      s = {};
      chain_a(
          depth,
          [](void* arg) {
            unwind::test::gpuprof_test_capture(static_cast<unwind::test::Sample*>(arg), 65536);
          },
          &s);
      frames = unwinder.unwind(s.view()).pcs.size();
    }
    if (frames != kFrames) std::abort();
    return s;
  }();
  return taken;
}

struct Process {
  unwind::FileCache files;
  symbolize::SymbolCache symbols;
  std::shared_ptr<unwind::AddressSpace> space =
      *unwind::AddressSpace::open({static_cast<uint32_t>(getpid()), 0}, files);
  unwind::Unwinder unwinder{space};
  symbolize::Symbolizer symbolizer{space, symbols};
};

void BM_WarmUnwind(benchmark::State& state) {
  Process process;
  unwind::RawStack stack;
  for (auto _ : state) {
    process.unwinder.unwind(sample().view(), stack);
    benchmark::DoNotOptimize(stack.pcs.data());
  }
  state.counters["frames"] = static_cast<double>(stack.pcs.size());
}
BENCHMARK(BM_WarmUnwind)->Unit(benchmark::kMicrosecond);

void BM_WarmUnwindAndSymbolize(benchmark::State& state) {
  Process process;
  unwind::RawStack stack;
  size_t named = 0;
  for (auto _ : state) {
    process.unwinder.unwind(sample().view(), stack);
    named = 0;
    for (const uint64_t pc : stack.pcs) named += !process.symbolizer.resolve(pc).frames.empty();
    benchmark::DoNotOptimize(named);
  }
  state.counters["frames"] = static_cast<double>(stack.pcs.size());
  state.counters["named"] = static_cast<double>(named);
}
BENCHMARK(BM_WarmUnwindAndSymbolize)->Unit(benchmark::kMicrosecond);

// A process is seen for the first time by a daemon that knows its files.
void BM_OpenKnownProcess(benchmark::State& state) {
  Process process;
  for (auto _ : state) {
    auto space = unwind::AddressSpace::open({static_cast<uint32_t>(getpid()), 0}, process.files);
    benchmark::DoNotOptimize(space);
  }
}
BENCHMARK(BM_OpenKnownProcess)->Unit(benchmark::kMicrosecond);

// Nothing is known: files, rules and symbol tables are read for the first stack.
void BM_ColdFirstStack(benchmark::State& state) {
  for (auto _ : state) {
    Process process;
    const unwind::RawStack stack = process.unwinder.unwind(sample().view());
    for (const uint64_t pc : stack.pcs) benchmark::DoNotOptimize(process.symbolizer.resolve(pc));
  }
}
BENCHMARK(BM_ColdFirstStack)->Unit(benchmark::kMillisecond);

void BM_LibdwflWarmUnwind(benchmark::State& state) {
  unwind::test::DwflReference reference(getpid());
  size_t frames = 0;
  for (auto _ : state) frames = reference.unwind(sample()).size();
  state.counters["frames"] = static_cast<double>(frames);
}
BENCHMARK(BM_LibdwflWarmUnwind)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace gpuprof

BENCHMARK_MAIN();

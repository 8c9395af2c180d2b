// SPDX-License-Identifier: Apache-2.0
//
// Executions joined a second on one core (target: at least 1 M/s), and the memory that takes. Each
// iteration is one batch of 256 executions, as a probe delivers them.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <random>
#include <vector>

#include "daemon/join/assemble.h"
#include "daemon/join/device_source.h"
#include "daemon/join/joiner.h"
#include "daemon/pprof/writer.h"

namespace gpuprof::join {
namespace {

constexpr ProcessId kProcess{100, 7};
constexpr size_t kBatch = 256;

uint64_t resident_kib() {
  unsigned long pages = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%*u %lu", &pages) != 1) pages = 0;
    std::fclose(file);
  }
  return pages * 4;
}

class Source {
 public:
  Source(uint32_t kernels, uint32_t streams)
      : kernels_(kernels), streams_(streams), batch_(kBatch) {}

  // One batch; the launch of every `one_in`th execution was sampled.
  void feed(Joiner& joiner, uint32_t one_in) {
    for (gpuprof_exec_v1& record : batch_) {
      const uint32_t id = ++correlation_;
      record.correlation = id;
      record.epoch = 1;
      record.kind = GPUPROF_KIND_KERNEL;
      record.name_id = random_() % kernels_ + 1;
      record.stream_id = static_cast<uint32_t>(random_() % streams_);
      record.context_id = 1;
      record.start_ns = uint64_t{id} * 1000;
      record.end_ns = record.start_ns + 500 + id % 700;
      if (id % one_in != 0) continue;
      gpuprof_launch_v1 launch{};
      launch.correlation = id;
      launch.epoch = 1;
      launch.kind = GPUPROF_KIND_KERNEL;
      launch.weight_q32 = uint64_t{one_in} << 32;
      joiner.add_launch(kProcess, launch, 1 + static_cast<StackId>(random_() % 2000), 1);
    }
    joiner.add_execs(kProcess, batch_);
    now_ns_ += kBatch * 5000;  // 200k executions a second
    joiner.advance(now_ns_);
  }
  // Of the next execution's start.
  [[nodiscard]] uint64_t time_ns() const { return (uint64_t{correlation_} + 1) * 1000; }

 private:
  uint32_t kernels_, streams_;
  std::vector<gpuprof_exec_v1> batch_;
  std::minstd_rand random_{1};
  uint32_t correlation_ = 0;
  uint64_t now_ns_ = 1;
};

// Arguments: one launch in N sampled, kernels, streams.
void BM_Join(benchmark::State& state) {
  Joiner joiner;
  Source source(static_cast<uint32_t>(state.range(1)), static_cast<uint32_t>(state.range(2)));
  const auto one_in = static_cast<uint32_t>(state.range(0));
  for (auto _ : state) source.feed(joiner, one_in);
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * kBatch));
  state.counters["rss_mib"] = static_cast<double>(resident_kib()) / 1024;
  benchmark::DoNotOptimize(joiner.finish_window());
}
BENCHMARK(BM_Join)
    ->Args({200, 20, 1})
    ->Args({200, 2000, 32})
    ->Args({1, 20, 1})
    ->Args({1, 2000, 32});

// What a device calls its counters: 19 reasons, each with its not-issued part.
class StallNames : public DeviceSource {
 public:
  const DeviceModule& device_module(ProcessId, uint64_t) override { return none_; }
  std::string_view stall_name(ProcessId, uint32_t, uint32_t index) override {
    name_ = "smsp__pcsamp_warps_issue_stalled_reason" + std::to_string(index / 2);
    if (index % 2 == 1) name_ += "_not_issued";
    return name_;
  }

 private:
  DeviceModule none_;
  std::string name_;
};

constexpr size_t kPcBatch = 64;

// PC samples as a drain delivers them: kernel by kernel, an instruction's counters in a row.
class PcSource {
 public:
  PcSource(uint32_t kernels, uint32_t instructions)
      : kernels_(kernels), instructions_(instructions), batch_(kPcBatch) {}

  void feed(Joiner& joiner) {
    for (gpuprof_pc_sample_v1& record : batch_) {
      const uint64_t at = next_++;
      record.cubin_key = 1;
      record.function_name_id = at / 2000 % kernels_ + 1;
      record.context_id = 1;
      record.pc_offset = static_cast<uint32_t>(at / 8 % instructions_ * 16);
      record.stall_index = static_cast<uint32_t>(at % 8);
      record.samples = 1 + static_cast<uint32_t>(random_() % 20);
    }
    joiner.add_pc_samples(kProcess, batch_);
  }

 private:
  uint32_t kernels_, instructions_;
  std::vector<gpuprof_pc_sample_v1> batch_;
  std::minstd_rand random_{1};
  uint64_t next_ = 0;
};

// Executions and, a quarter as many, PC samples, in sampling windows. Arguments: mode (1
// continuous, 2 serialized: a window open for one in ten batches). Items are executions.
void BM_JoinWithPcSamples(benchmark::State& state) {
  Joiner joiner;
  Source source(200, 20);
  PcSource pcs(200, 500);
  const auto mode = static_cast<uint32_t>(state.range(0));
  gpuprof_window_v1 window{};
  window.mode = mode;
  window.context_id = 1;
  uint64_t batches = 0;
  const auto tell = [&](uint32_t event) {
    window.event = event;
    window.time_ns = source.time_ns();
    joiner.add_window(kProcess, window);
  };
  if (mode == 1) tell(GPUPROF_WINDOW_OPEN);
  for (auto _ : state) {
    const bool is_turn = mode == 2 && batches % 10 == 0;
    ++batches;
    if (is_turn) ++window.window_id;
    if (is_turn) tell(GPUPROF_WINDOW_OPEN);
    source.feed(joiner, 200);
    if (is_turn) tell(GPUPROF_WINDOW_CLOSE);
    pcs.feed(joiner);
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * kBatch));
  state.counters["rss_mib"] = static_cast<double>(resident_kib()) / 1024;
  StallNames names;
  benchmark::DoNotOptimize(joiner.finish_window(nullptr, &names));
}
BENCHMARK(BM_JoinWithPcSamples)->Arg(1)->Arg(2);

// PC records summed a second. Arguments: kernels, instructions of each.
void BM_PcSamples(benchmark::State& state) {
  Joiner joiner;
  PcSource pcs(static_cast<uint32_t>(state.range(0)), static_cast<uint32_t>(state.range(1)));
  for (auto _ : state) pcs.feed(joiner);
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * kPcBatch));
  state.counters["rss_mib"] = static_cast<double>(resident_kib()) / 1024;
}
BENCHMARK(BM_PcSamples)->Args({20, 200})->Args({200, 500});

// A 10-minute run at 200k executions/s in one window: 120 M executions. The memory must not grow.
void BM_TenMinutes(benchmark::State& state) {
  for (auto _ : state) {
    Joiner joiner;
    Source source(200, 4);
    const uint64_t batches = 600 * 200'000 / kBatch;
    double first_mib = 0;
    for (uint64_t i = 0; i < batches; ++i) {
      source.feed(joiner, 200);
      if (i == batches / 5) first_mib = static_cast<double>(resident_kib()) / 1024;
    }
    state.counters["rss_2min_mib"] = first_mib;
    state.counters["rss_10min_mib"] = static_cast<double>(resident_kib()) / 1024;
    benchmark::DoNotOptimize(joiner.finish_window());
    state.SetItemsProcessed(static_cast<int64_t>(batches * kBatch));
  }
}
BENCHMARK(BM_TenMinutes)->Iterations(1)->Unit(benchmark::kSecond);

// Argument: with PC samples of 200 kernels, half a million counters.
void BM_FinishWindow(benchmark::State& state) {
  StallNames names;
  for (auto _ : state) {
    state.PauseTiming();
    Joiner joiner;
    Source source(2000, 32);
    for (int i = 0; i < 4000; ++i) source.feed(joiner, 200);
    PcSource pcs(200, 500);
    for (int i = 0; state.range(0) != 0 && i < 10'000; ++i) pcs.feed(joiner);
    state.ResumeTiming();
    const JoinResult result = joiner.finish_window(nullptr, &names);
    state.counters["rows"] = static_cast<double>(result.rows.size());
    state.counters["pc_rows"] = static_cast<double>(result.pc_rows.size());
  }
}
BENCHMARK(BM_FinishWindow)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);

// Samples written a second: stacks of 40 frames.
void BM_Write(benchmark::State& state) {
  Model model;
  model.modules.push_back({"/bin/app", "", 0x1000, 0x1000000});
  for (uint32_t i = 0; i < 5000; ++i) {
    const std::string name = "function_" + std::to_string(i);
    model.functions.push_back({name, name, "/src/" + name + ".cc", 1});
    model.locations.push_back({0, 0x1000 + i * 16, {{i, 10}}});
  }
  std::minstd_rand random(1);
  for (uint32_t i = 0; i < 50'000; ++i) {
    std::vector<uint32_t> stack(40);
    for (uint32_t& location : stack) location = static_cast<uint32_t>(random() % 5000);
    model.stacks.push_back(std::move(stack));
    model.label_sets.push_back({{"gpu_stream", std::to_string(i % 64), 0, ""}});
    model.samples.push_back({i, i, {1000, 1, 0, 0}});
  }
  for (auto _ : state) benchmark::DoNotOptimize(pprof::serialize(model));
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * model.samples.size()));
}
BENCHMARK(BM_Write)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace gpuprof::join

// SPDX-License-Identifier: Apache-2.0
//
// Decoder on full batches of executions: the rate of one core from ring entry to sink.
#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "daemon/probe/decoder.h"

namespace gpuprof::probe {
namespace {

class NoLosses : public LossSource {
 public:
  std::optional<gpuprof_stream_losses> losses(const gpuprof_stream_key&) override { return {}; }
  std::vector<gpuprof_stream_key> lossy_streams() override { return {}; }
  void forget(const gpuprof_stream_key&) override {}
};

class SummingSink : public EventSink {
 public:
  void on_process(const EventSource&, const gpuprof_process_v1&) override {}
  void on_launch(const EventSource&, const gpuprof_launch_v1&, const StackSample* s) override {
    total_ns += s ? s->bytes.size() : 0;
  }
  void on_execs(const EventSource&, std::span<const gpuprof_exec_v1> execs) override {
    for (const gpuprof_exec_v1& exec : execs) total_ns += exec.end_ns - exec.start_ns;
  }
  void on_pc_samples(const EventSource&, std::span<const gpuprof_pc_sample_v1>) override {}
  void on_name(const EventSource&, uint32_t, uint64_t, std::string_view) override {}
  void on_modules(const EventSource&, std::span<const gpuprof_module_v1>) override {}
  void on_device(const EventSource&, const gpuprof_device_v1&) override {}
  void on_window(const EventSource&, const gpuprof_window_v1&) override {}
  void on_drop(const EventSource&, const gpuprof_drop_v1&) override {}
  void on_loss(ProcessId, uint32_t, uint64_t records, LossReason) override { lost += records; }

  uint64_t total_ns = 0;
  uint64_t lost = 0;
};

// Argument: how many processes take turns, so that state is looked up.
void decode_execs(benchmark::State& state) {
  constexpr uint32_t kCount = 256;
  NoLosses losses;
  SummingSink sink;
  Decoder decoder({}, sink, losses);
  // 8 MiB of entries: out of the caches, as a ring is.
  constexpr size_t kEntries = 288;
  const size_t entry_bytes = sizeof(gpuprof_ring_header) + kCount * sizeof(gpuprof_exec_v1);
  std::vector<std::vector<uint8_t>> entries(kEntries, std::vector<uint8_t>(entry_bytes));
  for (auto& entry : entries) {
    auto* execs = reinterpret_cast<gpuprof_exec_v1*>(entry.data() + sizeof(gpuprof_ring_header));
    for (uint32_t i = 0; i < kCount; i++) {
      execs[i].start_ns = 100 + i;
      execs[i].end_ns = 200 + i;
      execs[i].kind = GPUPROF_KIND_KERNEL;
    }
  }
  const auto processes = static_cast<uint64_t>(state.range(0));
  uint64_t n = 0;
  for (auto _ : state) {
    auto& entry = entries[n % kEntries];
    gpuprof_ring_header header{};
    header.seq = n / processes * kCount;
    header.start_boottime = 1'000'000'000;
    header.probe = GPUPROF_PROBE_EXEC;
    header.count = kCount;
    header.pid = static_cast<uint32_t>(1 + n % processes);
    header.payload_bytes = kCount * sizeof(gpuprof_exec_v1);
    std::memcpy(header.comm, "python", 7);
    std::memcpy(entry.data(), &header, sizeof(header));
    decoder.on_events_entry(entry, static_cast<int64_t>(n));
    n++;
  }
  if (sink.lost != 0) state.SkipWithError("records lost");
  benchmark::DoNotOptimize(sink.total_ns);
  state.SetItemsProcessed(static_cast<int64_t>(n) * kCount);
}
BENCHMARK(decode_execs)->Arg(1)->Arg(64);

}  // namespace
}  // namespace gpuprof::probe

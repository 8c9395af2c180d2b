// SPDX-License-Identifier: Apache-2.0
//
// What a hit costs the thread that fires, with the daemon's programs attached. Needs root.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "daemon/base/unique_fd.h"
#include "tests/e2e/probe_fixture.h"
#include "tests/e2e/probe_site.h"
#include "tests/e2e/python_memory.h"

namespace gpuprof::probe {
namespace {

class NullSink : public KeepingSink {
 public:
  void on_launch(const EventSource&, const gpuprof_launch_v1&, const StackSample* s) override {
    stacks += s != nullptr;
    if (!s) return;
    stack_bytes += s->bytes.size();
    python_frames += s->python.size();
  }
  void on_execs(const EventSource&, std::span<const gpuprof_exec_v1> r) override {
    received += r.size();
  }
  int64_t stacks = 0;
  uint64_t stack_bytes = 0;
  uint64_t python_frames = 0;
  uint64_t received = 0;
};

// The environment's GPU_PROFILED_DEBUG_FALLBACK picks the mode.
struct Attached {
  Attached() {
    ProbeOptions options;
    options.process_bytes_per_s = options.user_bytes_per_s = 1ull << 40;
    auto created = ProbeSession::create(options, sink);
    if (!created) fail(created.error().message);
    session = std::move(*created);
    const UniqueFd fd(open(site_library_path().c_str(), O_RDONLY | O_CLOEXEC));
    auto attached = session->attach(fd.get(), "probe_site");
    if (!attached) fail(attached.error().message);
    if (!session->watch({.pid = static_cast<uint32_t>(getpid()), .start_ticks = 0})) fail("watch");
  }
  [[noreturn]] static void fail(const std::string& message) {
    std::fprintf(stderr, "%s\n", message.c_str());
    std::exit(1);
  }
  NullSink sink;
  std::unique_ptr<ProbeSession> session;
};

// Runs `body` with `kib` KiB of stack in use, as near as the frames allow.
template <typename Body>
[[gnu::noinline]] void at_depth(int64_t kib, const char* outermost, const Body& body) {
  volatile char frame[1024];
  for (char volatile& c : frame) c = 1;
  if (outermost - reinterpret_cast<const char*>(__builtin_frame_address(0)) < (kib - 2) * 1024) {
    at_depth(kib, outermost, body);
    frame[0] = 2;
    return;
  }
  body();
}

void fire_hot(benchmark::State& state, Attached& at) {
  gpuprof_launch_v1 launch = sample_launch(1);
  uint64_t seq = 0;
  for (auto _ : state) {
    probe_site_fire(GPUPROF_PROBE_LAUNCH, &launch, 1, seq++);
    if (seq % 32 == 0) {
      state.PauseTiming();
      (void)at.session->poll(std::chrono::milliseconds(0));
      state.ResumeTiming();
    }
  }
}

// Every hit finds the stack and the ring out of the core's own caches, as one of 200 a second does.
void fire_cold(benchmark::State& state, Attached& at) {
  gpuprof_launch_v1 launch = sample_launch(1);
  std::vector<uint64_t> other(8 << 20);
  uint64_t seq = 0;
  std::vector<double> all;
  for (auto _ : state) {
    for (size_t i = 0; i < other.size(); i += 8) other[i] += seq;
    const auto start = std::chrono::steady_clock::now();
    probe_site_fire(GPUPROF_PROBE_LAUNCH, &launch, 1, seq++);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    state.SetIterationTime(took.count());
    all.push_back(took.count() * 1e6);
    (void)at.session->poll(std::chrono::milliseconds(0));
  }
  // The mean is at the mercy of whatever else runs.
  std::sort(all.begin(), all.end());
  state.counters["median_us"] = all[all.size() / 2];
  state.counters["p90_us"] = all[all.size() * 9 / 10];
}

template <auto Fire>
void launch_hit(benchmark::State& state) {
  Attached at;
  at_depth(state.range(0), static_cast<const char*>(__builtin_frame_address(0)),
           [&] { Fire(state, at); });
  (void)at.session->poll(std::chrono::milliseconds(0));
  state.counters["bytes"] = static_cast<double>(at.sink.stack_bytes) / state.iterations();
  state.counters["faulted_in"] = at.session->counters().bpf[GPUPROF_BPF_FAULTED_IN];
  if (at.sink.stacks != state.iterations()) state.SkipWithError("stacks lost");
  state.SetLabel(at.session->describe());
}
constexpr auto depths = [](auto* bench) {
  bench->ArgName("KiB");
  for (const int64_t kib : {0, 8, 16, 32, 62, 126, 250}) bench->Arg(kib);
};
BENCHMARK_TEMPLATE(launch_hit, fire_hot)->Apply(depths);
BENCHMARK_TEMPLATE(launch_hit, fire_cold)->Apply(depths)->UseManualTime()->Iterations(500);

// Of a launch at 16 KiB of stack, with so many Python frames, by a thread whose state comes behind
// those of others. The first line is the launch without Python, so that the rest is what that adds.
template <auto Fire>
void python_hit(benchmark::State& state) {
  Attached at;
  const auto levels = static_cast<size_t>(state.range(0));
  const PythonMemory memory(levels, static_cast<size_t>(state.range(1)));
  const gpuprof_python walk = memory.walk();
  if (levels != 0) at.session->set_python({static_cast<uint32_t>(getpid()), 0}, &walk);
  at_depth(16, static_cast<const char*>(__builtin_frame_address(0)), [&] { Fire(state, at); });
  (void)at.session->poll(std::chrono::milliseconds(0));
  if (at.sink.stacks != state.iterations()) state.SkipWithError("stacks lost");
  if (at.sink.python_frames != levels * static_cast<uint64_t>(state.iterations()))
    state.SkipWithError("Python frames lost");
  state.SetLabel(at.session->describe());
}
constexpr auto python_stacks = [](auto* bench) {
  bench->ArgNames({"levels", "threads"});
  for (const int64_t levels : {0, 10, 30, 100}) bench->Args({levels, 0});
  bench->Args({30, 16})->Args({30, 64});
};
BENCHMARK_TEMPLATE(python_hit, fire_hot)->Apply(python_stacks);
BENCHMARK_TEMPLATE(python_hit, fire_cold)->Apply(python_stacks)->UseManualTime()->Iterations(500);

void exec_batch_hit(benchmark::State& state) {
  Attached at;
  const std::vector<gpuprof_exec_v1> execs(256, sample_exec(1));
  uint64_t seq = 0;
  for (auto _ : state) {
    probe_site_fire(GPUPROF_PROBE_EXEC, execs.data(), 256, seq);
    seq += 256;
    if (seq % (256 * 128) == 0) {
      state.PauseTiming();
      (void)at.session->poll(std::chrono::milliseconds(0));
      state.ResumeTiming();
    }
  }
  (void)at.session->poll(std::chrono::milliseconds(0));
  if (at.sink.received != seq) state.SkipWithError("records lost");
  state.SetLabel(at.session->describe());
}
BENCHMARK(exec_batch_hit);

}  // namespace
}  // namespace gpuprof::probe

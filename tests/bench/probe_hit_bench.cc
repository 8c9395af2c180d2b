// SPDX-License-Identifier: Apache-2.0
//
// What a hit costs the thread that fires, with the daemon's programs attached. Needs root.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "daemon/base/unique_fd.h"
#include "tests/e2e/probe_fixture.h"
#include "tests/e2e/probe_site.h"

namespace gpuprof::probe {
namespace {

class NullSink : public KeepingSink {
 public:
  void on_launch(const EventSource&, const gpuprof_launch_v1&, const StackSample* s) override {
    stacks += s != nullptr;
    if (s) stack_bytes += s->bytes.size();
  }
  void on_execs(const EventSource&, std::span<const gpuprof_exec_v1> r) override {
    received += r.size();
  }
  int64_t stacks = 0;
  uint64_t stack_bytes = 0;
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

[[gnu::noinline]] void launch_at_depth(benchmark::State& state, Attached& at, int64_t kib) {
  volatile char frame[1024];
  for (char volatile& c : frame) c = 1;
  if (kib > 0) {
    launch_at_depth(state, at, kib - 1);
    frame[0] = 2;
    return;
  }
  gpuprof_launch_v1 launch = sample_launch(1);
  uint64_t seq = 0;
  for (auto _ : state) {
    probe_site_fire(GPUPROF_PROBE_LAUNCH, &launch, 1, seq++);
    if (seq % 128 == 0) {
      state.PauseTiming();
      (void)at.session->poll(std::chrono::milliseconds(0));
      state.ResumeTiming();
    }
  }
}

void launch_hit(benchmark::State& state) {
  Attached at;
  launch_at_depth(state, at, state.range(0));
  (void)at.session->poll(std::chrono::milliseconds(0));
  state.counters["bytes"] = static_cast<double>(at.sink.stack_bytes) / state.iterations();
  state.counters["faulted_in"] = at.session->counters().bpf[GPUPROF_BPF_FAULTED_IN];
  if (at.sink.stacks != state.iterations()) state.SkipWithError("stacks lost");
  state.SetLabel(at.session->describe());
}
BENCHMARK(launch_hit)->ArgName("KiB")->Arg(0)->Arg(7)->Arg(15)->Arg(31)->Arg(62);

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

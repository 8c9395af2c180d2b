// SPDX-License-Identifier: Apache-2.0
// The e2e workload: threads that launch kernels, copies, fills and graphs through 30 functions in
// three libraries, at a chosen rate. The truth about it goes to $FAKE_CUDA_TRUTH at exit; a row's
// stack is the functions from main (or worker_thread) to gamma_launch. SIGTERM and SIGINT end it
// cleanly.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/e2e/workload/kernels.h"
#include "tests/e2e/workload/options.h"
#include "tests/e2e/workload/pace.h"
#include "tests/e2e/workload/work.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace workload {
namespace {

constexpr size_t kPaths = 8;
constexpr uint64_t kBurst = 64;

std::atomic<bool> stop{false};

struct Path {
  uint64_t (*alpha)(Work*);
  uint64_t (*beta)(Work*);
  uint64_t (*gamma)(Work*);
  std::string label;  // kept for ever: the truth holds its address
};

struct Shared {
  Options options;
  std::vector<Kernel> kernels;
  CUgraphExec graph = nullptr;
  std::atomic<uint64_t> failed{0};
};

void append_chain(std::string& label, const char* library, const char* side, int levels) {
  for (int i = 0; i < levels; ++i) {
    label += std::string(";") + library + "_" + side + "_" + std::to_string(i);
  }
}

std::vector<Path>* make_paths(const char* root) {
  auto* paths = new std::vector<Path>(kPaths);
  for (size_t i = 0; i < kPaths; ++i) {
    Path& path = (*paths)[i];
    path.alpha = i & 1 ? alpha_right_0 : alpha_left_0;
    path.beta = i & 2 ? beta_right_0 : beta_left_0;
    path.gamma = i & 4 ? gamma_right_0 : gamma_left_0;
    path.label = root;
    append_chain(path.label, "alpha", i & 1 ? "right" : "left", 10);
    append_chain(path.label, "beta", i & 2 ? "right" : "left", 10);
    append_chain(path.label, "gamma", i & 4 ? "right" : "left", 9);
    path.label += ";gamma_launch";
  }
  return paths;
}

/// Which kernel launch `i` is of.
size_t kernel_of(const Options& options, uint64_t i) {
  if (options.flood == 0) return i % kKernels;
  const uint64_t place = i % (options.flood + (kKernels - 1) * options.flood_bursts);
  return place < options.flood ? 0 : 1 + (place - options.flood) / options.flood_bursts;
}

/// Which call path launch `i` takes. In bursts it follows from the place in the burst, which is
/// what fools a sampler that looks at the first launches after a pause.
size_t path_of(const Options& options, uint64_t i, uint64_t thread) {
  if (options.flood != 0) return kernel_of(options, i) % kPaths;
  if (!options.bursts) return (i * 7 + i / 20 + thread) % kPaths;
  const uint64_t place = i % kBurst;
  return place == 0 ? 0 : place < 4 ? 1 : place < 16 ? 2 : place < 48 ? 3 : 4;
}

/// Everything that follows a kernel launch by the options.
Op follow_up(const Options& options, uint64_t i, uint64_t* bytes) {
  *bytes = 1000 + i % 64 * 4096;
  if (options.graph_every != 0 && i % options.graph_every == 0) return Op::kGraph;
  if (options.memset_every != 0 && i % options.memset_every == 0) return Op::kMemset;
  if (options.memcpy_every != 0 && i % options.memcpy_every == 0) {
    constexpr Op kCopies[] = {Op::kMemcpyHtoD, Op::kMemcpyDtoH, Op::kMemcpyDtoD};
    return kCopies[i / options.memcpy_every % 3];
  }
  return Op::kKernel;
}

/// Inlined into main and worker_thread, so that the path below them is exactly the label.
__attribute__((always_inline)) inline void launch_loop(Shared& shared, uint64_t thread,
                                                       CUstream stream,
                                                       const std::vector<Path>& paths) {
  const Options& options = shared.options;
  const uint64_t share =
      options.launches / options.threads + (thread < options.launches % options.threads ? 1 : 0);
  Pace pace(options.rate, options.seconds, options.rate_steps && thread == 0,
            options.bursts ? kBurst : 1);
  Work work;
  work.stream = stream;
  work.graph = shared.graph;
  for (uint64_t i = 0;
       !stop.load(std::memory_order_relaxed) && (options.launches == 0 || i < share); ++i) {
    if (!pace.wait(i)) break;
    const Path& path = paths[path_of(options, i, thread)];
    const Kernel& kernel = shared.kernels[kernel_of(options, i)];
    fake_cuda_label(path.label.c_str());
    work.beta = path.beta;
    work.gamma = path.gamma;
    work.op = Op::kKernel;
    work.function = kernel.function;
    work.duration_ns = kernel.duration_ns + i % 16;
    work.driver_api = options.driver_every != 0 && i % options.driver_every == 0;
    path.alpha(&work);
    work.op = follow_up(options, i + 1, &work.bytes);
    if (work.op != Op::kKernel) path.alpha(&work);
    if (options.recapture && i % 5000 == 4999) cuGraphExecDestroy(build_graph(shared.kernels, 5));
  }
  shared.failed.fetch_add(work.failed);
}

struct ThreadArguments {
  Shared* shared;
  uint64_t index;
};

CUstream new_stream() {
  CUstream stream = nullptr;
  cuStreamCreate(&stream, 0);
  return stream;
}

}  // namespace
}  // namespace workload

WORKLOAD_FUNCTION void* worker_thread(void* argument) {
  using namespace workload;
  const auto* mine = static_cast<const ThreadArguments*>(argument);
  static const std::vector<Path>* paths = make_paths("worker_thread");
  launch_loop(*mine->shared, mine->index, new_stream(), *paths);
  return nullptr;
}

int main(int argc, char** argv) {
  using namespace workload;
  static Shared shared;
  shared.options = parse(argc, argv);
  struct sigaction action {};
  action.sa_handler = [](int) { stop.store(true); };
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  if (cuInit(0) != CUDA_SUCCESS) return 1;
  shared.kernels = load_kernels();
  if (shared.options.graph_every != 0)
    shared.graph = build_graph(shared.kernels, shared.options.graph_nodes);
  usleep(static_cast<useconds_t>(shared.options.delay_ms * 1000));
  std::vector<pthread_t> threads;
  std::vector<ThreadArguments> arguments(shared.options.threads);
  for (uint64_t i = shared.options.main_launches ? 1 : 0; i < shared.options.threads; ++i) {
    arguments[i] = {&shared, i};
    threads.emplace_back();
    pthread_create(&threads.back(), nullptr, worker_thread, &arguments[i]);
  }
  if (shared.options.main_launches) launch_loop(shared, 0, new_stream(), *make_paths("main"));
  for (pthread_t thread : threads) pthread_join(thread, nullptr);
  fake_cuda_drain();
  if (shared.failed.load() != 0)
    fprintf(stderr, "workload: %lu calls failed\n", shared.failed.load());
  return shared.failed.load() == 0 ? 0 : 1;
}

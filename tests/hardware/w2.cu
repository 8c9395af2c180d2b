// SPDX-License-Identifier: Apache-2.0
//
// Launch rates and GPU-bound work, each kind from a function of its own: empty kernels as fast as
// they go, a GPU-bound pair of kernels, a graph of ten nodes, and the driver API. One line of rates
// a round.
//
//   w2 [--rounds N | --seconds T] [--gate DIR] [--cpu N] [--tiny N] [--pairs N] [--graphs N]
//   [--driver N]
#include <cuda.h>
#include <cuda_runtime.h>
#include <sched.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "gate.h"

#define HW_NOINLINE __attribute__((noinline))

__global__ void tiny() {}
__global__ void beat() {}
__global__ void graph_node() {}
__global__ void driver_tiny() {}

__device__ __noinline__ float iterate(float x, int n) {
  for (int i = 0; i < n; ++i) x = x * 1.0001f + 0.5f;
  return x;
}

__global__ void compute(float* data, int n, int iterations) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) data[i] = iterate(sqrtf(data[i]), iterations);
}

__global__ void scale_copy(float* to, const float* from, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    to[i] = from[i] * 2;
}

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "w2: %s: %s\n", what, cudaGetErrorString(error));
  _exit(3);
}

struct Options {
  int rounds = 0;
  double seconds = 0;
  const char* gate = nullptr;
  int cpu = -1;
  int serve = 0;
  int tiny = 20000, pairs = 300, graphs = 200, driver = 2000;
  int mix = 0;  // one long kernel after so many tiny ones
};

struct Work {
  static constexpr int kElements = 1 << 24;
  float *a = nullptr, *b = nullptr;
  cudaStream_t stream = nullptr;
  cudaGraphExec_t graph = nullptr;
  CUfunction driver_function = nullptr;
};

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i + 1 < argc; i += 2) {
    const char* name = argv[i];
    const char* value = argv[i + 1];
    if (strcmp(name, "--rounds") == 0)
      o.rounds = atoi(value);
    else if (strcmp(name, "--seconds") == 0)
      o.seconds = atof(value);
    else if (strcmp(name, "--gate") == 0)
      o.gate = value;
    else if (strcmp(name, "--cpu") == 0)
      o.cpu = atoi(value);
    else if (strcmp(name, "--serve") == 0)
      o.serve = atoi(value);
    else if (strcmp(name, "--tiny") == 0)
      o.tiny = atoi(value);
    else if (strcmp(name, "--pairs") == 0)
      o.pairs = atoi(value);
    else if (strcmp(name, "--graphs") == 0)
      o.graphs = atoi(value);
    else if (strcmp(name, "--driver") == 0)
      o.driver = atoi(value);
    else if (strcmp(name, "--mix") == 0)
      o.mix = atoi(value);
    else {
      fprintf(stderr, "w2: unknown option %s\n", name);
      _exit(2);
    }
  }
  return o;
}

// The graph exists before anyone attaches: its nodes must be traced all the same.
void prepare(Work& w) {
  check(cudaMalloc(&w.a, Work::kElements * sizeof(float)), "cudaMalloc");
  check(cudaMalloc(&w.b, Work::kElements * sizeof(float)), "cudaMalloc");
  check(cudaMemset(w.a, 0, Work::kElements * sizeof(float)), "cudaMemset");
  check(cudaStreamCreate(&w.stream), "cudaStreamCreate");
  cudaGraph_t graph;
  check(cudaStreamBeginCapture(w.stream, cudaStreamCaptureModeGlobal), "capture");
  for (int i = 0; i < 10; ++i) graph_node<<<1, 32, 0, w.stream>>>();
  check(cudaStreamEndCapture(w.stream, &graph), "capture");
  check(cudaGraphInstantiate(&w.graph, graph, 0), "cudaGraphInstantiate");
  cudaFunction_t function;
  check(cudaGetFuncBySymbol(&function, reinterpret_cast<const void*>(driver_tiny)),
        "cudaGetFuncBySymbol");
  w.driver_function = reinterpret_cast<CUfunction>(function);
  check(cudaDeviceSynchronize(), "prepare");
}

}  // namespace

HW_NOINLINE void launch_tiny(const Work& w, int n, int mix) {
  for (int i = 1; i <= n; ++i) {
    tiny<<<1, 32>>>();
    if (mix > 0 && i % mix == 0) compute<<<Work::kElements / 256, 256>>>(w.a, Work::kElements, 64);
  }
  check(cudaDeviceSynchronize(), "tiny");
}

HW_NOINLINE void launch_pair(const Work& w, int n) {
  for (int i = 0; i < n; ++i) {
    compute<<<Work::kElements / 256, 256>>>(w.a, Work::kElements, 64);
    scale_copy<<<1024, 256>>>(w.b, w.a, Work::kElements);
  }
  check(cudaDeviceSynchronize(), "pair");
}

HW_NOINLINE void launch_graph(const Work& w, int n) {
  for (int i = 0; i < n; ++i) check(cudaGraphLaunch(w.graph, w.stream), "cudaGraphLaunch");
  check(cudaStreamSynchronize(w.stream), "graph");
}

HW_NOINLINE void launch_driver(const Work& w, int n) {
  for (int i = 0; i < n; ++i)
    cuLaunchKernel(w.driver_function, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr);
  check(cudaDeviceSynchronize(), "driver");
}

HW_NOINLINE void run_round(const Options& o, const Work& w, int round) {
  const auto t0 = Clock::now();
  launch_tiny(w, o.tiny, o.mix);
  const double tiny_s = seconds_since(t0);
  const auto t1 = Clock::now();
  launch_pair(w, o.pairs);
  const double pair_s = seconds_since(t1);
  const auto t2 = Clock::now();
  launch_graph(w, o.graphs);
  const double graph_s = seconds_since(t2);
  const auto t3 = Clock::now();
  launch_driver(w, o.driver);
  const double driver_s = seconds_since(t3);
  auto each = [](double seconds, int n, double unit) { return n > 0 ? seconds / n * unit : 0.0; };
  printf(
      "{\"round\": %d, \"tiny_ns\": %.2f, \"pair_ms\": %.5f, \"graph_us\": %.3f, \"driver_ns\": "
      "%.2f}\n",
      round, each(tiny_s, o.tiny, 1e9), each(pair_s, o.pairs, 1e3), each(graph_s, o.graphs, 1e6),
      each(driver_s, o.driver, 1e9));
  fflush(stdout);
}

static long resident_kib() {
  long kib = -1;
  if (FILE* file = fopen("/proc/self/status", "r")) {
    char line[256];
    while (fgets(line, sizeof line, file) != nullptr)
      if (sscanf(line, "VmRSS: %ld", &kib) == 1) break;
    fclose(file);
  }
  return kib;
}

// What a turn begins with is not its own: the GPU's switch from another process, cold caches.
static void serve(const Options& options, const Work& work) {
  char line[64];
  for (int round = 0; fgets(line, sizeof line, stdin) != nullptr; ++round) {
    launch_tiny(work, 300, 0);
    run_round(options, work, round);
  }
}

// The launching thread alone, once CUDA's and CUPTI's threads exist: where it happens to run
// decides more of the launch rate (+-10 % on an H200 machine) than what is measured.
static void pin(int cpu) {
  if (cpu < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) perror("w2: --cpu");
}

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  Work work;
  prepare(work);
  pin(options.cpu);
  auto one_beat = [] { beat<<<1, 32>>>(); };
  const hardware::Gate gate(options.gate);
  gate.open(one_beat);
  const auto start = Clock::now();
  for (int round = 0;
       round < options.rounds || (options.seconds > 0 && seconds_since(start) < options.seconds);
       ++round)
    run_round(options, work, round);
  if (options.serve != 0) serve(options, work);
  gate.close(one_beat);
  check(cudaDeviceSynchronize(), "end");
  printf("{\"end\": true, \"rss_kib\": %ld}\n", resident_kib());
  return 0;
}

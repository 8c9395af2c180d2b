// SPDX-License-Identifier: Apache-2.0
//
// Three kernels that each spend their time in one known place, three inlined calls below the
// kernel: on arithmetic, on a chain of dependent loads, on shared memory and barriers. The lines
// that must be hottest end in the comment `hot: KERNEL`, which the check reads.
//
//   hot_loops [--rounds N] [--seconds T] [--launches N] [--graph-after N] [--devices N] [--gate
//   DIR]
//
// --launches: of each kernel a round, with as many empty kernels between them. --graph-after: after
// so many rounds (0: before the gate) a graph runs in each. --devices: GPUs, in turns.
#include <cuda_runtime.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "gate.h"

#define HW_NOINLINE __attribute__((noinline))

__global__ void beat() {}
__global__ void tiny() {}
__global__ void graph_node() {}

__device__ __forceinline__ float math_inner(float x, int n) {
  for (int i = 0; i < n; ++i) {
    x = __sinf(x) * 1.0001f + __cosf(x + 0.5f);  // hot: hot_math
  }
  return x;
}

__device__ __forceinline__ float math_middle(float x, int n) {
  const float y = math_inner(x, n);
  return y * y + 1.0f;
}

__device__ __forceinline__ float math_outer(float x, int n) { return math_middle(x + 2.0f, n) - x; }

__global__ void hot_math(float* data, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  data[i] = math_outer(data[i], n);
}

__device__ __forceinline__ int chase_inner(const int* next, int at, int n) {
#pragma unroll 4
  for (int i = 0; i < n; ++i) {
    at = next[at];  // hot: hot_chase
  }
  return at;
}

__device__ __forceinline__ int chase_middle(const int* next, int at, int n) {
  const int end = chase_inner(next, at, n);
  return end + 1;
}

__device__ __forceinline__ int chase_outer(const int* next, int at, int n) {
  return chase_middle(next, at, n) ^ 5;
}

__global__ void hot_chase(const int* next, int* out, int elements, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = chase_outer(next, i % elements, n);
}

__device__ __forceinline__ float shared_inner(float* tile, float x, int n) {
  for (int i = 0; i < n; ++i) {
    tile[threadIdx.x] = x;                                        // hot: hot_shared
    __syncthreads();                                              // hot: hot_shared
    x = tile[(threadIdx.x * 33 + i) % blockDim.x] * 0.5f + 1.0f;  // hot: hot_shared
    __syncthreads();                                              // hot: hot_shared
  }
  return x;
}

__device__ __forceinline__ float shared_middle(float* tile, float x, int n) {
  const float y = shared_inner(tile, x, n);
  return y * 3.0f;
}

__device__ __forceinline__ float shared_outer(float* tile, float x, int n) {
  return shared_middle(tile, x, n) + x;
}

__global__ void hot_shared(float* data, int n) {
  __shared__ float tile[256];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  data[i] = shared_outer(tile, data[i], n);
}

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kBlocks = 132 * 8;
constexpr int kThreads = 256;
constexpr int kElements = 1 << 24;  // 64 MiB of indices: beyond the second-level cache of any GPU

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "hot_loops: %s: %s\n", what, cudaGetErrorString(error));
  _exit(3);
}

struct Options {
  int rounds = 0;
  double seconds = 0;
  int launches = 5;
  int graph_after = -1;
  int devices = 1;
  const char* gate = nullptr;
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
    else if (strcmp(name, "--launches") == 0)
      o.launches = atoi(value);
    else if (strcmp(name, "--graph-after") == 0)
      o.graph_after = atoi(value);
    else if (strcmp(name, "--devices") == 0)
      o.devices = atoi(value);
    else if (strcmp(name, "--gate") == 0)
      o.gate = value;
    else {
      fprintf(stderr, "hot_loops: unknown option %s\n", name);
      _exit(2);
    }
  }
  return o;
}

struct Work {
  int device = 0;
  float* data = nullptr;
  int *next = nullptr, *out = nullptr;
  cudaStream_t stream = nullptr;
  cudaGraphExec_t graph = nullptr;
};

void prepare(Work& w) {
  check(cudaSetDevice(w.device), "cudaSetDevice");
  check(cudaMalloc(&w.data, kBlocks * kThreads * sizeof(float)), "cudaMalloc");
  check(cudaMalloc(&w.next, kElements * sizeof(int)), "cudaMalloc");
  check(cudaMalloc(&w.out, kBlocks * kThreads * sizeof(int)), "cudaMalloc");
  int* next = static_cast<int*>(malloc(kElements * sizeof(int)));
  // A full cycle with long steps: an odd increment has no common factor with a power of two.
  for (int i = 0; i < kElements; ++i) next[i] = (i + 5'242'881) & (kElements - 1);
  check(cudaMemcpy(w.next, next, kElements * sizeof(int), cudaMemcpyHostToDevice), "cudaMemcpy");
  free(next);
  check(cudaMemset(w.data, 0, kBlocks * kThreads * sizeof(float)), "cudaMemset");
  check(cudaStreamCreate(&w.stream), "cudaStreamCreate");
  cudaGraph_t graph;
  check(cudaStreamBeginCapture(w.stream, cudaStreamCaptureModeGlobal), "capture");
  for (int i = 0; i < 10; ++i) graph_node<<<1, 32, 0, w.stream>>>();
  check(cudaStreamEndCapture(w.stream, &graph), "capture");
  check(cudaGraphInstantiate(&w.graph, graph, 0), "cudaGraphInstantiate");
  check(cudaDeviceSynchronize(), "prepare");
}

}  // namespace

// A launch at a function's end would be a jump, and its caller the launcher.
#define HW_NO_TAIL_CALL asm volatile("")

HW_NOINLINE void launch_math(const Work& w) {
  hot_math<<<kBlocks, kThreads>>>(w.data, 4000);
  HW_NO_TAIL_CALL;
}
HW_NOINLINE void launch_chase(const Work& w) {
  hot_chase<<<kBlocks, kThreads>>>(w.next, w.out, kElements, 300);
  HW_NO_TAIL_CALL;
}
HW_NOINLINE void launch_shared(const Work& w) {
  hot_shared<<<kBlocks, kThreads>>>(w.data, 1500);
  HW_NO_TAIL_CALL;
}
HW_NOINLINE void launch_graph(const Work& w) {
  check(cudaGraphLaunch(w.graph, w.stream), "cudaGraphLaunch");
  check(cudaStreamSynchronize(w.stream), "graph");
}

HW_NOINLINE void run_round(const Options& o, const Work& w, int round) {
  check(cudaSetDevice(w.device), "cudaSetDevice");
  const auto start = Clock::now();
  for (int i = 0; i < o.launches; ++i) {
    launch_math(w);
    tiny<<<1, 32>>>();
    launch_chase(w);
    tiny<<<1, 32>>>();
    launch_shared(w);
    tiny<<<1, 32>>>();
  }
  check(cudaDeviceSynchronize(), "round");
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (o.graph_after >= 0 && round >= o.graph_after) launch_graph(w);
  printf("{\"round\": %d, \"ms\": %.3f}\n", round, seconds * 1e3);
  fflush(stdout);
}

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  std::vector<Work> works(options.devices);
  for (int i = options.devices - 1; i >= 0; --i) {  // the first one's context is current at the end
    works[i].device = i;
    prepare(works[i]);
  }
  const bool graph_first = options.graph_after == 0;
  auto one_beat = [&] {
    beat<<<1, 32>>>();
    if (graph_first) launch_graph(works[0]);
  };
  const hardware::Gate gate(options.gate);
  gate.open(one_beat);
  const auto start = Clock::now();
  auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  for (int round = 0; round < options.rounds || seconds() < options.seconds; ++round)
    for (const Work& work : works) run_round(options, work, round);
  check(cudaSetDevice(0), "cudaSetDevice");
  gate.close(one_beat);
  check(cudaDeviceSynchronize(), "end");
  printf("{\"end\": true}\n");
  return 0;
}

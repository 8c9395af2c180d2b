// SPDX-License-Identifier: Apache-2.0
//
// Every way to put work on the GPU, each from a function by_X with a kernel k_X of its own, n
// times. The last line is what was issued: {"kernels": {name: count}, "cublas": bool}.
//
//   apis [--count N] [--gate DIR]
#include <cooperative_groups.h>
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "gate.h"

#define HW_NOINLINE __attribute__((noinline))

__global__ void beat() {}
__global__ void k_triple() {}
__global__ void k_exc(int) {}
__global__ void k_coop() { cooperative_groups::this_grid().sync(); }
__global__ void k_driver() {}
__global__ void k_driver_ex() {}
__global__ void k_thread() {}
__global__ void k_graph() {}
__global__ void k_captured_late() {}
__constant__ int constant_value[16];

void by_ptds(int n, void* device, const void* host);  // apis_ptds.cu

namespace {

constexpr size_t kBytes = 1 << 20;

struct Work {
  char *d1 = nullptr, *d2 = nullptr, *pinned = nullptr, *pageable = nullptr;
  cudaStream_t stream = nullptr;
  cudaGraphExec_t early_graph = nullptr;
  CUfunction driver = nullptr, driver_ex = nullptr;
};

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "apis: %s: %s\n", what, cudaGetErrorString(error));
  _exit(3);
}

void check(CUresult error, const char* what) {
  if (error == CUDA_SUCCESS) return;
  fprintf(stderr, "apis: %s: CUresult %d\n", what, static_cast<int>(error));
  _exit(3);
}

CUfunction function_of(const void* symbol) {
  cudaFunction_t function;
  check(cudaGetFuncBySymbol(&function, symbol), "cudaGetFuncBySymbol");
  return reinterpret_cast<CUfunction>(function);
}

// Three kernels, a copy and a fill.
cudaGraphExec_t capture(const Work& w, void (*kernel)()) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check(cudaStreamBeginCapture(w.stream, cudaStreamCaptureModeGlobal), "capture");
  for (int i = 0; i < 3; ++i) kernel<<<1, 32, 0, w.stream>>>();
  check(cudaMemcpyAsync(w.d2, w.d1, kBytes, cudaMemcpyDeviceToDevice, w.stream), "capture");
  check(cudaMemsetAsync(w.d1, 0, kBytes, w.stream), "capture");
  check(cudaStreamEndCapture(w.stream, &graph), "capture");
  check(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
  check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  return exec;
}

void prepare(Work& w) {
  check(cudaMalloc(&w.d1, kBytes), "cudaMalloc");
  check(cudaMalloc(&w.d2, kBytes), "cudaMalloc");
  check(cudaMallocHost(&w.pinned, kBytes), "cudaMallocHost");
  w.pageable = static_cast<char*>(calloc(1, kBytes));
  check(cudaStreamCreate(&w.stream), "cudaStreamCreate");
  w.driver = function_of(reinterpret_cast<const void*>(k_driver));
  w.driver_ex = function_of(reinterpret_cast<const void*>(k_driver_ex));
  w.early_graph = capture(w, k_graph);
}

// cuBLAS without its headers: three plain functions. Null handle where it is not installed.
struct Cublas {
  using Sgemm = int (*)(void*, int, int, int, int, int, const float*, const float*, int,
                        const float*, int, const float*, float*, int);
  void* handle = nullptr;
  Sgemm sgemm = nullptr;

  Cublas() {
    void* library = nullptr;
    for (const char* path : {getenv("CUBLAS_PATH"), const_cast<char*>("libcublas.so.13"),
                             const_cast<char*>("/usr/local/cuda/lib64/libcublas.so.13")})
      if (library == nullptr && path != nullptr) library = dlopen(path, RTLD_NOW);
    if (library == nullptr) return;
    auto create = reinterpret_cast<int (*)(void**)>(dlsym(library, "cublasCreate_v2"));
    sgemm = reinterpret_cast<Sgemm>(dlsym(library, "cublasSgemm_v2"));
    if (create == nullptr || sgemm == nullptr || create(&handle) != 0) handle = nullptr;
  }
};

}  // namespace

HW_NOINLINE void by_triple(int n) {
  for (int i = 0; i < n; ++i) k_triple<<<1, 32>>>();
  check(cudaDeviceSynchronize(), "triple");
}

HW_NOINLINE void by_exc(int n, cudaStream_t stream) {
  cudaLaunchConfig_t config = {};
  config.gridDim = 1;
  config.blockDim = 32;
  config.stream = stream;
  int value = 0;
  void* arguments[] = {&value};
  for (int i = 0; i < n; ++i)
    check(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(k_exc), arguments),
          "cudaLaunchKernelExC");
  check(cudaDeviceSynchronize(), "exc");
}

HW_NOINLINE void by_coop(int n) {
  for (int i = 0; i < n; ++i)
    check(cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(k_coop), dim3(4), dim3(32),
                                      nullptr),
          "cudaLaunchCooperativeKernel");
  check(cudaDeviceSynchronize(), "coop");
}

HW_NOINLINE void by_driver(int n, const Work& w) {
  for (int i = 0; i < n; ++i)
    check(cuLaunchKernel(w.driver, 1, 1, 1, 32, 1, 1, 0, w.stream, nullptr, nullptr),
          "cuLaunchKernel");
  check(cudaDeviceSynchronize(), "driver");
}

HW_NOINLINE void by_driver_ex(int n, const Work& w) {
  CUlaunchConfig config = {};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = 32;
  config.blockDimY = config.blockDimZ = 1;
  config.hStream = w.stream;
  for (int i = 0; i < n; ++i)
    check(cuLaunchKernelEx(&config, w.driver_ex, nullptr, nullptr), "cuLaunchKernelEx");
  check(cudaDeviceSynchronize(), "driver_ex");
}

HW_NOINLINE void by_thread(int n) {
  for (int i = 0; i < n; ++i) k_thread<<<1, 32>>>();
  check(cudaDeviceSynchronize(), "thread");
}

HW_NOINLINE void by_graph(int n, const Work& w) {
  for (int i = 0; i < n; ++i) check(cudaGraphLaunch(w.early_graph, w.stream), "cudaGraphLaunch");
  check(cudaStreamSynchronize(w.stream), "graph");
}

// Captured while the profiler may be attached; n launches of it, and one capture that is thrown
// away.
HW_NOINLINE void by_captured_late(int n, const Work& w) {
  cudaGraphExec_t exec = capture(w, k_captured_late);
  for (int i = 0; i < n; ++i) check(cudaGraphLaunch(exec, w.stream), "cudaGraphLaunch");
  check(cudaStreamSynchronize(w.stream), "captured_late");
  check(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy");
  check(cudaGraphExecDestroy(capture(w, k_captured_late)), "cudaGraphExecDestroy");
}

HW_NOINLINE void by_memcpy(int n, const Work& w) {
  for (int i = 0; i < n; ++i) {
    check(cudaMemcpy(w.d1, w.pageable, kBytes, cudaMemcpyHostToDevice), "HtoD");
    check(cudaMemcpy(w.pageable, w.d1, kBytes, cudaMemcpyDeviceToHost), "DtoH");
    check(cudaMemcpy(w.d2, w.d1, kBytes, cudaMemcpyDeviceToDevice), "DtoD");
    check(cudaMemcpyAsync(w.d1, w.pinned, kBytes, cudaMemcpyHostToDevice, w.stream), "HtoD async");
    check(cudaMemcpyAsync(w.pinned, w.d1, kBytes, cudaMemcpyDeviceToHost, w.stream), "DtoH async");
    check(cudaMemcpyAsync(w.d2, w.d1, kBytes, cudaMemcpyDeviceToDevice, w.stream), "DtoD async");
    check(cudaMemcpy2D(w.d1, 1024, w.pageable, 1024, 512, 100, cudaMemcpyHostToDevice), "2D");
    check(cudaMemcpyPeer(w.d2, 0, w.d1, 0, kBytes), "peer");
    check(cudaMemcpyToSymbol(constant_value, w.pageable, sizeof constant_value), "symbol");
    check(cuMemcpyDtoD(reinterpret_cast<CUdeviceptr>(w.d2), reinterpret_cast<CUdeviceptr>(w.d1),
                       kBytes),
          "driver");
  }
  check(cudaDeviceSynchronize(), "memcpy");
}

HW_NOINLINE void by_memset(int n, const Work& w) {
  for (int i = 0; i < n; ++i) {
    check(cudaMemset(w.d1, 1, kBytes), "memset");
    check(cudaMemsetAsync(w.d1, 1, kBytes, w.stream), "memset async");
    check(cudaMemset2D(w.d1, 1024, 0, 512, 100), "memset 2D");
    check(cuMemsetD32(reinterpret_cast<CUdeviceptr>(w.d1), 7, kBytes / 4), "memset D32");
  }
  check(cudaDeviceSynchronize(), "memset");
}

HW_NOINLINE void by_cublas(int n, const Work& w, const Cublas& blas) {
  const float one = 1, zero = 0;
  auto* a = reinterpret_cast<float*>(w.d1);
  auto* c = reinterpret_cast<float*>(w.d2);
  for (int i = 0; i < n; ++i)
    blas.sgemm(blas.handle, 0, 0, 256, 256, 256, &one, a, 256, a, 256, &zero, c, 256);
  check(cudaDeviceSynchronize(), "cublas");
}

HW_NOINLINE void run_all(int n, const Work& w, const Cublas& blas) {
  by_triple(n);
  by_exc(n, w.stream);
  by_coop(n);
  by_ptds(n, w.d1, w.pinned);
  by_driver(n, w);
  by_driver_ex(n, w);
  std::thread(by_thread, n).join();
  by_graph(n, w);
  by_captured_late(n, w);
  by_memcpy(n, w);
  by_memset(n, w);
  if (blas.handle != nullptr) by_cublas(n, w, blas);
}

int main(int argc, char** argv) {
  int n = 200;
  const char* gate_directory = nullptr;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (strcmp(argv[i], "--count") == 0) n = atoi(argv[i + 1]);
    if (strcmp(argv[i], "--gate") == 0) gate_directory = argv[i + 1];
  }
  Work work;
  prepare(work);
  const Cublas blas;
  if (blas.handle != nullptr)
    by_cublas(1, work, blas);  // its modules and workspaces, before the gate
  auto one_beat = [] { beat<<<1, 32>>>(); };
  const hardware::Gate gate(gate_directory);
  gate.open(one_beat);
  run_all(n, work, blas);
  gate.close(one_beat);
  check(cudaDeviceSynchronize(), "end");
  printf("{\"kernels\": {");
  for (const char* name :
       {"k_triple", "k_exc", "k_coop", "k_ptds", "k_driver", "k_driver_ex", "k_thread"})
    printf("\"%s\": %d, ", name, n);
  printf("\"k_graph\": %d, \"k_captured_late\": %d}, \"cublas\": %s}\n", 3 * n, 3 * n,
         blas.handle != nullptr ? "true" : "false");
  return 0;
}

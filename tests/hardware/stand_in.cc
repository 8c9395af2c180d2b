// SPDX-License-Identifier: Apache-2.0
//
// Stands in for the workloads of the hardware checks on the fake driver (tests/fake_cuda), so that
// the checks' own course can be run without a GPU. Called by a workload's name (w2, hot_loops,
// train …) it takes its options, launches kernels of its names from functions of its names, and
// answers as it does. Cubins made from the real sources lie in $STAND_IN_CUBINS.
#include <cuda.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/hardware/gate.h"

#define STAND_IN_NOINLINE __attribute__((noinline, noclone))

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  fprintf(stderr, "stand-in: %s: CUDA error %d\n", what, static_cast<int>(result));
  exit(3);
}

/// Options of the form --name [value].
class Options {
 public:
  Options(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
      const bool has_value = i + 1 < argc && std::string(argv[i + 1]).rfind("--", 0) != 0;
      values_[argv[i]] = has_value ? argv[i + 1] : "1";
      if (has_value) ++i;
    }
  }
  int number(const char* name, int otherwise) const {
    const auto found = values_.find(name);
    return found == values_.end() ? otherwise : atoi(found->second.c_str());
  }
  const char* text(const char* name) const {
    const auto found = values_.find(name);
    return found == values_.end() ? nullptr : found->second.c_str();
  }

 private:
  std::map<std::string, std::string> values_;
};

/// Where the samples fall, for kernels whose hottest lines are checked, or that hold code that
/// never runs. Offsets in what nvcc 13.0 makes (CMakeLists.txt asks for it); others are spread
/// evenly.
const std::map<std::string, const char*> kPcs = {
    {"_Z8hot_mathPfi",
     "0x50:selected*1 0x180:math_pipe_throttle*6/2 0x200:wait*4/1 0x280:math_pipe_throttle*9/3"},
    {"_Z9hot_chasePKiPiii", "0x1b0:wait*1 0x200:long_scoreboard*9/8 0x280:long_scoreboard*9/8"},
    {"_Z10hot_sharedPfi",
     "0x60:wait*1 0x280:short_scoreboard*3/2 0x320:barrier*5/5 0x300:wait*4/1 0x400:barrier*4/4"},
    {"_Z7computePfii", "0x60:long_scoreboard*1 0x1f0:math_pipe_throttle*8/2 0x250:wait*4/1"},
};

struct Gpu {
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CUgraphExec graph = nullptr;
  std::map<std::string, CUfunction> functions;
  std::map<std::string, CUmodule> modules;

  CUfunction function(const std::string& module, const std::string& name) {
    CUfunction& found = functions[name];
    if (found != nullptr) return found;
    CUmodule& loaded = modules[module];
    if (loaded == nullptr) {
      const std::string path = std::string(getenv("STAND_IN_CUBINS")) + "/" + module + ".cubin";
      std::ifstream in(path, std::ios::binary);
      const std::vector<char> image{std::istreambuf_iterator<char>(in), {}};
      check(image.empty() ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_SUCCESS, path.c_str());
      check(cuModuleLoadData(&loaded, image.data()), "cuModuleLoadData");
    }
    check(cuModuleGetFunction(&found, loaded, name.c_str()), name.c_str());
    const auto pcs = kPcs.find(name);
    if (pcs != kPcs.end() && fake_cuda_pcs(found, pcs->second) != 0) exit(3);
    return found;
  }
};

Gpu gpu;  // the one that is current

/// Always inlined: the function that launches is the caller.
__attribute__((always_inline)) inline void launch(CUfunction function, uint64_t ns,
                                                  CUstream stream = gpu.stream) {
  void* parameters[] = {&ns};
  check(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr), "launch");
}

void synchronize() { check(cuCtxSynchronize(), "cuCtxSynchronize"); }

void capture_graph(CUfunction node, int nodes) {
  CUgraph graph = nullptr;
  check(cuStreamBeginCapture(gpu.stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "capture");
  for (int i = 0; i < nodes; ++i) launch(node, 1000);
  check(cuStreamEndCapture(gpu.stream, &graph), "capture");
  check(cuGraphInstantiateWithFlags(&gpu.graph, graph, 0), "cuGraphInstantiate");
  check(cuGraphDestroy(graph), "cuGraphDestroy");
}

Gpu start(int number) {
  Gpu made;
  CUdevice device = 0;
  check(cuDeviceGet(&device, number), "cuDeviceGet");
  check(cuDevicePrimaryCtxRetain(&made.context, device), "cuDevicePrimaryCtxRetain");
  check(cuCtxSetCurrent(made.context), "cuCtxSetCurrent");
  check(cuStreamCreate(&made.stream, 0), "cuStreamCreate");
  return made;
}

}  // namespace

STAND_IN_NOINLINE void launch_tiny(int n) {
  for (int i = 0; i < n; ++i) launch(gpu.function("w2", "_Z4tinyv"), 1500);
  synchronize();
}
STAND_IN_NOINLINE void launch_pair(int n) {
  for (int i = 0; i < n; ++i) {
    launch(gpu.function("w2", "_Z7computePfii"), 60'000);
    launch(gpu.function("w2", "_Z10scale_copyPfPKfi"), 70'000);
  }
  synchronize();
}
STAND_IN_NOINLINE void launch_graph(int n) {
  for (int i = 0; i < n; ++i) check(cuGraphLaunch(gpu.graph, gpu.stream), "cuGraphLaunch");
  synchronize();
}
STAND_IN_NOINLINE void launch_driver(int n) {
  for (int i = 0; i < n; ++i) launch(gpu.function("w2", "_Z11driver_tinyv"), 1500);
  synchronize();
}
STAND_IN_NOINLINE void launch_math() {
  launch(gpu.function("hot_loops", "_Z8hot_mathPfi"), 500'000);
}
STAND_IN_NOINLINE void launch_chase() {
  launch(gpu.function("hot_loops", "_Z9hot_chasePKiPiii"), 300'000);
}
STAND_IN_NOINLINE void launch_shared() {
  launch(gpu.function("hot_loops", "_Z10hot_sharedPfi"), 200'000);
}

namespace {

void w2_round(const Options& options, int round) {
  const int tiny = options.number("--tiny", 2000), pairs = options.number("--pairs", 300);
  const int graphs = options.number("--graphs", 50), driver = options.number("--driver", 200);
  const auto t0 = Clock::now();
  launch_tiny(tiny);
  const double tiny_s = seconds_since(t0);
  const auto t1 = Clock::now();
  launch_pair(pairs);
  const double pair_s = seconds_since(t1);
  const auto t2 = Clock::now();
  launch_graph(graphs);
  const double graph_s = seconds_since(t2);
  const auto t3 = Clock::now();
  launch_driver(driver);
  const double driver_s = seconds_since(t3);
  auto each = [](double seconds, int n, double unit) { return n > 0 ? seconds / n * unit : 0.0; };
  printf(
      "{\"round\": %d, \"tiny_ns\": %.2f, \"pair_ms\": %.5f, \"graph_us\": %.3f, \"driver_ns\": "
      "%.2f}\n",
      round, each(tiny_s, tiny, 1e9), each(pair_s, pairs, 1e3), each(graph_s, graphs, 1e6),
      each(driver_s, driver, 1e9));
  fflush(stdout);
}

int w2(const Options& options) {
  check(cuMemsetD8Async(0x1000, 0, 4096, gpu.stream), "memset");
  capture_graph(gpu.function("w2", "_Z10graph_nodev"), 10);
  synchronize();
  auto beat = [] { launch(gpu.function("w2", "_Z4beatv"), 1000); };
  const hardware::Gate gate(options.text("--gate"));
  gate.open(beat);
  const auto start = Clock::now();
  for (int round = 0; round < options.number("--rounds", 0) ||
                      seconds_since(start) < options.number("--seconds", 0);
       ++round)
    w2_round(options, round);
  std::string line;
  if (options.number("--serve", 0) != 0) {
    for (int round = 0; std::getline(std::cin, line); ++round) w2_round(options, round);
  }
  gate.close(beat);
  synchronize();
  printf("{\"end\": true, \"rss_kib\": 1000}\n");
  return 0;
}

void hot_loops_round(const Options& options, int round) {
  const int graph_after = options.number("--graph-after", -1);
  for (int i = 0; i < options.number("--launches", 5); ++i) {
    launch_math();
    launch(gpu.function("hot_loops", "_Z4tinyv"), 1000);
    launch_chase();
    launch_shared();
  }
  synchronize();
  if (graph_after >= 0 && round >= graph_after) launch_graph(1);
}

int hot_loops(const Options& options) {
  check(cuMemsetD8Async(0x1000, 0, 4096, gpu.stream), "memset");
  static char host[4096];
  check(cuMemcpyHtoDAsync(0x1000, host, sizeof host, gpu.stream), "memcpy");
  capture_graph(gpu.function("hot_loops", "_Z10graph_nodev"), 10);
  synchronize();
  auto beat = [&] {
    launch(gpu.function("hot_loops", "_Z4beatv"), 1000);
    if (options.number("--graph-after", -1) == 0) launch_graph(1);
  };
  const hardware::Gate gate(options.text("--gate"));
  gate.open(beat);
  Gpu second;
  const bool two = options.number("--devices", 1) > 1;
  if (two) second = start(1);
  for (int round = 0; round < options.number("--rounds", 0); ++round) {
    for (int i = 0; i < (two ? 2 : 1); ++i) {
      check(cuCtxSetCurrent(gpu.context), "cuCtxSetCurrent");
      hot_loops_round(options, round);
      if (two) std::swap(gpu, second);
    }
  }
  check(cuCtxSetCurrent(gpu.context), "cuCtxSetCurrent");
  gate.close(beat);
  synchronize();
  printf("{\"end\": true}\n");
  return 0;
}

void python_step() {
  launch(gpu.function("triton", "triton_softmax"), 200'000);
  launch(gpu.function("vendor", "cutlass_gemm_stand_in"), 300'000);
  launch(gpu.function("triton", "triton_horner"), 100'000);
}

/// pc_torch and train: fixed steps, or as many as asked for.
int python_steps(const Options& options, const char* answer) {
  python_step();
  synchronize();
  std::string line;
  if (options.text("--serve") != nullptr) {
    while (std::getline(std::cin, line)) {
      const int steps = atoi(line.c_str());
      const auto start = Clock::now();
      for (int i = 0; i < steps; ++i) python_step();
      synchronize();
      printf("{\"steps\": %d, \"step_ms\": %.5f}\n", steps, seconds_since(start) / steps * 1e3);
      fflush(stdout);
    }
    printf("{\"end\": true}\n");
    return 0;
  }
  auto beat = [] { launch(gpu.function("vendor", "bessel_j0_beat"), 1000); };
  const hardware::Gate gate(options.text("--gate"));
  gate.open(beat);
  for (int i = 0; i < options.number("--steps", 0); ++i) python_step();
  synchronize();
  gate.close(beat);
  synchronize();
  printf("{\"steps\": %d, %s}\n", options.number("--steps", 0), answer);
  return 0;
}

/// Captures and replays until DIR/stop exists.
int captures_until_stopped(const Options& options) {
  const std::string gate = options.text("--gate");
  if (FILE* file = fopen((gate + "/ready").c_str(), "w")) fclose(file);
  int captures = 0;
  for (; access((gate + "/stop").c_str(), F_OK) != 0; ++captures) {
    capture_graph(gpu.function("vendor", "cutlass_gemm_stand_in"), 4);
    for (int i = 0; i < 5; ++i) {
      launch_graph(1);
      launch(gpu.function("triton", "triton_horner"), 50'000);
    }
    synchronize();
    check(cuGraphExecDestroy(gpu.graph), "cuGraphExecDestroy");
  }
  printf("{\"captures\": %d, \"replays\": %d, \"wrong\": 0, \"unequal\": 0}\n", captures,
         5 * captures);
  return 0;
}

int all_reduce(const Options& options) {
  const int steps = options.number("--steps", 0);
  for (int i = 0; i < steps; ++i) {
    launch(gpu.function("vendor", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"), 200'000);
    launch(gpu.function("vendor", "cutlass_gemm_stand_in"), 2'000'000);
  }
  synchronize();
  printf("{\"steps\": %d, \"right\": true, \"devices\": 1}\n", steps);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options(argc, argv);
  std::string name = argv[0];
  name = name.substr(name.rfind('/') + 1);
  check(cuInit(0), "cuInit");
  gpu = start(0);
  if (name == "w2") return w2(options);
  if (name == "hot_loops") return hot_loops(options);
  if (name == "pc_torch") return python_steps(options, "\"right\": true");
  if (name == "train") return python_steps(options, "\"step_ms\": 1.0, \"loss\": 0.0");
  if (name == "triton_add") return python_steps(options, "\"right\": true");
  if (name == "capture") return captures_until_stopped(options);
  if (name == "nccl_loop") return all_reduce(options);
  fprintf(stderr, "stand-in: no workload is called %s\n", name.c_str());
  return 2;
}

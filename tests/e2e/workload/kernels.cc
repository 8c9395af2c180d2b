// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/workload/kernels.h"

#include <cstdio>
#include <cstdlib>

namespace workload {
namespace {

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  fprintf(stderr, "workload: %s: CUDA error %d\n", what, static_cast<int>(result));
  exit(1);
}

/// A valid mangled template name of some 3,000 characters:
/// void long_kernel<type_0000, type_0001, ...>(float*).
std::string long_name() {
  std::string name = "_Z11long_kernelIJ";
  for (int i = 0; i < 300; ++i) {
    char type[16];
    snprintf(type, sizeof type, "9type_%04d", i);
    name += type;
  }
  return name + "EEvPf";
}

std::string name_of(size_t i) {
  if (i == kLongNameKernel) return long_name();
  if (i >= kSameNameFirst) return "_Z11same_kernelPf";
  char name[64];
  snprintf(name, sizeof name, "_Z9kernel_%02zuPfi", i);
  return name;
}

}  // namespace

std::vector<Kernel> load_kernels() {
  CUmodule modules[2] = {nullptr, nullptr};
  check(cuModuleLoadData(&modules[0], "// module one"), "cuModuleLoadData");
  check(cuModuleLoadData(&modules[1], "// module two"), "cuModuleLoadData");
  std::vector<Kernel> kernels(kKernels);
  for (size_t i = 0; i < kKernels; ++i) {
    kernels[i].name = name_of(i);
    kernels[i].duration_ns = 137 + 211 * i;
    check(cuModuleGetFunction(&kernels[i].function, modules[i == kSameNameSecond ? 1 : 0],
                              kernels[i].name.c_str()),
          "cuModuleGetFunction");
  }
  return kernels;
}

CUgraphExec build_graph(const std::vector<Kernel>& kernels, size_t nodes) {
  CUstream stream = nullptr;
  check(cuStreamCreate(&stream, 0), "cuStreamCreate");
  check(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
  for (size_t i = 0; i < nodes; ++i) {
    const Kernel& kernel = kernels[i % kernels.size()];
    uint64_t duration_ns = kernel.duration_ns;
    void* parameters[] = {&duration_ns};
    check(cuLaunchKernel(kernel.function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr),
          "cuLaunchKernel");
  }
  CUgraph graph = nullptr;
  check(cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
  CUgraphExec exec = nullptr;
  check(cuGraphInstantiateWithFlags(&exec, graph, 0), "cuGraphInstantiateWithFlags");
  check(cuGraphDestroy(graph), "cuGraphDestroy");
  return exec;
}

}  // namespace workload

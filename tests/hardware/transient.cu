// SPDX-License-Identifier: Apache-2.0
//
// Modules and contexts that come and go: two kernels, each in a cubin of its own, run by turns for
// a while.
//
//   transient stay|modules|contexts FOLDER [--rounds N] [--launches N]
//
// stay: both modules are loaded once. modules: each is loaded before its turn and unloaded after
// it. contexts: each turn has a context of its own, destroyed after it. FOLDER has alpha.cubin and
// beta.cubin.
#include <cuda.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr long long kCycles = 1'000'000;  // of a kernel: some 0.6 ms
constexpr int kThreads = 128;

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* text = "";
  cuGetErrorString(result, &text);
  fprintf(stderr, "%s: %d (%s)\n", what, result, text);
  exit(1);
}

#define CHECK(call) check(call, #call)

struct Code {
  std::string path;
  const char* name;
  CUmodule module = nullptr;

  void load() { CHECK(cuModuleLoad(&module, path.c_str())); }
  void unload() { CHECK(cuModuleUnload(module)); }
};

void turn(const Code& code, int launches) {
  CUfunction function;
  CHECK(cuModuleGetFunction(&function, code.module, code.name));
  int processors = 0;
  CHECK(cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
  const int blocks = 4 * processors;
  CUdeviceptr out = 0;
  CHECK(cuMemAlloc(&out, sizeof(float) * kThreads * blocks));
  long long cycles = kCycles;
  void* arguments[] = {&out, &cycles};
  for (int i = 0; i < launches; ++i) {
    CHECK(cuLaunchKernel(function, blocks, 1, 1, kThreads, 1, 1, 0, nullptr, arguments, nullptr));
  }
  CHECK(cuCtxSynchronize());
  CHECK(cuMemFree(out));
}

CUcontext make_context(CUdevice device) {
  CUcontext context = nullptr;
#if CUDA_VERSION >= 13000
  CHECK(cuCtxCreate(&context, nullptr, 0, device));
#else
  CHECK(cuCtxCreate(&context, 0, device));
#endif
  return context;
}

}  // namespace

int main(int count, char** words) {
  int rounds = 10, launches = 200;
  for (int i = 3; i + 1 < count; i += 2) {
    if (strcmp(words[i], "--rounds") == 0) rounds = atoi(words[i + 1]);
    if (strcmp(words[i], "--launches") == 0) launches = atoi(words[i + 1]);
  }
  if (count < 3) return 2;
  const std::string mode = words[1], folder = words[2];
  Code codes[] = {{folder + "/alpha.cubin", "alpha"}, {folder + "/beta.cubin", "beta"}};
  CUdevice device = 0;
  CHECK(cuInit(0));
  CHECK(cuDeviceGet(&device, 0));
  CUcontext context = nullptr;
  if (mode != "contexts") context = make_context(device);
  if (mode == "stay") {
    for (Code& code : codes) code.load();
  }
  for (int round = 0; round < rounds; ++round) {
    for (Code& code : codes) {
      if (mode == "contexts") context = make_context(device);
      if (mode != "stay") code.load();
      turn(code, launches);
      if (mode != "stay") code.unload();
      if (mode == "contexts") CHECK(cuCtxDestroy(context));
    }
  }
  if (mode != "contexts") CHECK(cuCtxDestroy(context));
  printf("{\"rounds\": %d}\n", rounds);
  return 0;
}

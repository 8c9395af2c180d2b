// SPDX-License-Identifier: Apache-2.0
// Finds libcuda as Python packages do: not needed by the program, but dlopened by its name.
//   workload_by_name [launches] [a second]
#include <cuda.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

void* library;

template <class Function>
Function function(const char* name) {
  void* const found = dlsym(library, name);
  if (found != nullptr) return reinterpret_cast<Function>(found);
  fprintf(stderr, "workload_by_name: %s\n", dlerror());
  exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  const long launches = argc > 1 ? atol(argv[1]) : 5;
  const long rate = argc > 2 ? atol(argv[2]) : 1000;
  library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    fprintf(stderr, "workload_by_name: %s\n", dlerror());
    return 1;
  }
  if (function<CUresult (*)(unsigned)>("cuInit")(0) != CUDA_SUCCESS) {
    sleep(6);  // as one that goes on without a GPU: it can be looked at
    return 2;
  }
  CUmodule module = nullptr;
  CUfunction kernel = nullptr;
  function<CUresult (*)(CUmodule*, const void*)>("cuModuleLoadData")(&module, "// module");
  function<CUresult (*)(CUfunction*, CUmodule, const char*)>("cuModuleGetFunction")(&kernel, module,
                                                                                    "_Z6kernelPf");
  const auto launch = function<decltype(&cuLaunchKernel)>("cuLaunchKernel");
  for (long i = 0; i < launches; ++i) {
    uint64_t duration_ns = 1000;
    void* parameters[] = {&duration_ns};
    if (launch(kernel, 1, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr) != CUDA_SUCCESS)
      return 3;
    usleep(static_cast<useconds_t>(1'000'000 / rate));
  }
  function<void (*)()>("fake_cuda_drain")();
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
// Launches through named_entry, its own or a library's that is opened late, until it is killed.
//   named GO [LIBRARY [REPLACEMENT]]
// Until the file GO is there it launches from main; then it opens LIBRARY and puts REPLACEMENT in
// its place.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tests/e2e/workload/kernels.h"
#include "tests/e2e/workload/named_code.h"

namespace {

constexpr useconds_t kPauseUs = 5000;
constexpr int kMostLaunches = 60000;  // five minutes

using Entry = void (*)(void (*)(void*), void*);

void launch_one(void* kernel) {
  uint64_t duration_ns = 1000;
  void* parameters[] = {&duration_ns};
  if (cuLaunchKernel(static_cast<workload::Kernel*>(kernel)->function, 1, 1, 1, 32, 1, 1, 0,
                     nullptr, parameters, nullptr) != CUDA_SUCCESS) {
    std::exit(1);
  }
}

Entry open_entry(const char* library) {
  void* opened = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  void* entry = opened == nullptr ? nullptr : dlsym(opened, "named_entry");
  if (entry == nullptr) {
    std::fprintf(stderr, "named: %s\n", dlerror());
    std::exit(1);
  }
  return reinterpret_cast<Entry>(entry);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || cuInit(0) != CUDA_SUCCESS) return 1;
  auto kernels = workload::load_kernels();
  while (access(argv[1], F_OK) != 0) {
    launch_one(&kernels[0]);
    usleep(kPauseUs);
  }
  const Entry entry = argc > 2 ? open_entry(argv[2]) : named_entry;
  if (argc > 3 && std::rename(argv[3], argv[2]) != 0) return 1;
  for (int i = 0; i < kMostLaunches; ++i) {
    entry(launch_one, &kernels[0]);
    usleep(kPauseUs);
  }
  return 0;
}

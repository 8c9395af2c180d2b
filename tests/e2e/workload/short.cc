// SPDX-License-Identifier: Apache-2.0
// A short-lived CUDA process: init, N launches, exit with the status given.
//   workload_short [launches] [status] [exit|_exit|abort|kill]
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "tests/e2e/workload/kernels.h"
#include "tests/fake_cuda/fake_cuda.h"

int main(int argc, char** argv) {
  const long launches = argc > 1 ? atol(argv[1]) : 5;
  const int status = argc > 2 ? atoi(argv[2]) : 0;
  const char* how = argc > 3 ? argv[3] : "exit";
  if (cuInit(0) != CUDA_SUCCESS) return 1;
  const auto kernels = workload::load_kernels();
  fake_cuda_label("main");
  for (long i = 0; i < launches; ++i) {
    uint64_t duration_ns = 1000;
    void* parameters[] = {&duration_ns};
    if (cuLaunchKernel(kernels[static_cast<size_t>(i) % kernels.size()].function, 1, 1, 1, 32, 1, 1,
                       0, nullptr, parameters, nullptr) != CUDA_SUCCESS) {
      return 1;
    }
  }
  fake_cuda_drain();
  if (strcmp(how, "_exit") == 0) _exit(status);
  if (strcmp(how, "abort") == 0) abort();
  if (strcmp(how, "kill") == 0) kill(getpid(), SIGKILL);
  return status;
}

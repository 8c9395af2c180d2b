// SPDX-License-Identifier: Apache-2.0
// A CUDA process that becomes another program.
//   workload_execer LAUNCHES MILLISECONDS PROGRAM [ARGUMENTS]
// Launches, stays MILLISECONDS (what CUPTI holds back at exec is lost), then execs PROGRAM. With
// EXECER_UNTIL in the environment it launches until that file exists.
#include <unistd.h>

#include <cstdlib>

#include "tests/e2e/workload/kernels.h"
#include "tests/fake_cuda/fake_cuda.h"

extern "C" __attribute__((noinline)) int execer_launch(CUfunction function) {
  uint64_t duration_ns = 1000;
  void* parameters[] = {&duration_ns};
  const CUresult result =
      cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr);
  return result == CUDA_SUCCESS ? 0 : 1;
}

int main(int argc, char** argv) {
  if (argc < 4 || cuInit(0) != CUDA_SUCCESS) return 1;
  const auto kernels = workload::load_kernels();
  fake_cuda_label("main");
  const long launches = atol(argv[1]), milliseconds = atol(argv[2]);
  const char* const until = getenv("EXECER_UNTIL");
  while (until != nullptr && access(until, F_OK) != 0) {
    if (execer_launch(kernels[0].function) != 0) return 1;
    usleep(1000);
  }
  // Spread over the time, so that a late attach sees some; the last 600 ms are for the flushes.
  for (long i = 0; i < launches; ++i) {
    if (execer_launch(kernels[0].function) != 0) return 1;
    if (milliseconds > 600) usleep(static_cast<useconds_t>((milliseconds - 600) * 1000 / launches));
  }
  fake_cuda_drain();
  usleep(600'000);
  execv(argv[3], argv + 3);
  return 127;
}

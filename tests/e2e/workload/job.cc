// SPDX-License-Identifier: Apache-2.0
// A job of many processes.
//   workload_job NAME LAUNCHES FORKED SPAWNED
// Before it uses CUDA itself it forks FORKED workers, and starts SPAWNED programs of its own kind
// with RANK and LOCAL_RANK; then each of them launches. With JOB_GO in the environment they wait,
// CUDA initialised, until that file exists. The truth about each is in $JOB_TRUTH/NAME.json,
// NAME-forkedN.json, NAME-spawnedN.json; their numbers, as they see them, in files .pid beside.
// Exits 0 if all did.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/e2e/workload/kernels.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace {

bool work(const std::string& name, long launches) {
  const char* folder = getenv("JOB_TRUTH");
  if (folder != nullptr)
    setenv("FAKE_CUDA_TRUTH", (std::string(folder) + "/" + name + ".json").c_str(), 1);
  if (folder != nullptr) {
    FILE* file = fopen((std::string(folder) + "/" + name + ".pid").c_str(), "w");
    if (file == nullptr) return false;
    fprintf(file, "%d\n", static_cast<int>(getpid()));
    fclose(file);
  }
  if (cuInit(0) != CUDA_SUCCESS) return false;
  const auto kernels = workload::load_kernels();
  fake_cuda_label("main");
  const char* go = getenv("JOB_GO");
  while (go != nullptr && access(go, F_OK) != 0) usleep(10'000);
  for (long i = 0; i < launches; ++i) {
    uint64_t duration_ns = 1000;
    void* parameters[] = {&duration_ns};
    if (cuLaunchKernel(kernels[0].function, 1, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr) !=
        CUDA_SUCCESS)
      return false;
    usleep(10'000);
  }
  fake_cuda_drain();
  return true;
}

void spawn(char** argv, const std::string& name, const std::string& launches, int rank) {
  setenv("RANK", std::to_string(100 + rank).c_str(), 1);
  setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
  char self[4096] = {};  // by its own name, which is the process's, too
  if (readlink("/proc/self/exe", self, sizeof self - 1) <= 0) _exit(126);
  execl(self, argv[0], name.c_str(), launches.c_str(), "0", "0", static_cast<char*>(nullptr));
  _exit(127);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const std::string name = argv[1];
  const long launches = atol(argv[2]);
  const int forked = atoi(argv[3]), spawned = atoi(argv[4]);
  std::vector<pid_t> workers;
  for (int i = 0; i < forked + spawned; ++i) {
    const pid_t pid = fork();
    if (pid == 0 && i < forked) exit(work(name + "-forked" + std::to_string(i), launches) ? 0 : 1);
    if (pid == 0) spawn(argv, name + "-spawned" + std::to_string(i - forked), argv[2], i - forked);
    workers.push_back(pid);
  }
  bool good = work(name, launches);
  for (const pid_t pid : workers) {
    int status = 0;
    good = pid > 0 && waitpid(pid, &status, 0) == pid && status == 0 && good;
  }
  return good ? 0 : 1;
}

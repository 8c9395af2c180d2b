// SPDX-License-Identifier: Apache-2.0
// Forks after cuInit while another thread launches.
//   workload_forker [forks] [mode] [program]
// mode: exit (the child leaves by exit), _exit, use (the child calls CUDA, which must fail), exec
// (the child runs `program`, which is injected anew), raw (clone without atfork handlers, then
// _exit). Exits 0 if every child ended with status 0.
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/e2e/workload/kernels.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace {

std::atomic<bool> stop{false};
CUfunction kernel = nullptr;

CUresult launch() {
  uint64_t duration_ns = 500;
  void* parameters[] = {&duration_ns};
  return cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr);
}

void* launcher(void*) {
  fake_cuda_label("launcher");
  while (!stop.load()) {
    launch();
    usleep(100);
  }
  return nullptr;
}

[[noreturn]] void child(const char* mode, const char* program) {
  if (strcmp(mode, "exec") == 0) {
    execl(program, program, static_cast<char*>(nullptr));
    _exit(3);
  }
  if (strcmp(mode, "use") == 0) {
    // CUDA does not work in a forked child of an initialised process; the shim must stay quiet
    // there.
    const bool refused = launch() == CUDA_ERROR_NOT_INITIALIZED;
    _exit(refused ? 0 : 4);
  }
  if (strcmp(mode, "exit") == 0) exit(0);
  _exit(0);
}

pid_t start_child(const char* mode) {
  if (strcmp(mode, "raw") == 0)
    return static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  return fork();
}

}  // namespace

int main(int argc, char** argv) {
  const long forks = argc > 1 ? atol(argv[1]) : 10;
  const char* mode = argc > 2 ? argv[2] : "exit";
  const char* program = argc > 3 ? argv[3] : "/bin/true";
  if (cuInit(0) != CUDA_SUCCESS) return 1;
  kernel = workload::load_kernels()[0].function;
  fake_cuda_label("main");
  if (launch() != CUDA_SUCCESS) return 1;
  pthread_t thread{};
  pthread_create(&thread, nullptr, launcher, nullptr);
  int bad = 0;
  for (long i = 0; i < forks; ++i) {
    const pid_t pid = start_child(mode);
    if (pid == 0) child(mode, program);
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status) ||
        WEXITSTATUS(status) != 0)
      ++bad;
  }
  stop.store(true);
  pthread_join(thread, nullptr);
  fake_cuda_drain();
  if (bad != 0) fprintf(stderr, "forker: %d of %ld children failed\n", bad, forks);
  return bad == 0 ? 0 : 1;
}

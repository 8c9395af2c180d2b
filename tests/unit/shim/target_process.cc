// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/shim/target_process.h"

#include <cuda.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/unit/shim/probe_tap.h"

namespace gpuprof::testing {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int exit_status(int wait_status) {
  return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
}

[[noreturn]] void child(int error_fd, const Environment& environment,
                        const std::function<void()>& body) {
  dup2(error_fd, 2);
  dup2(error_fd, 1);  // gtest prints failures there
  setenv("CUDA_INJECTION64_PATH", GPUPROF_SHIM_FILE, 1);
  setenv("GPU_PROFILED_CUPTI_PATH", FAKE_CUPTI_DIR, 1);
  for (const auto& [name, value] : environment) {
    value.empty() ? unsetenv(name.c_str()) : setenv(name.c_str(), value.c_str(), 1);
  }
  body();
  fflush(nullptr);
  exit(::testing::Test::HasFailure() ? 1 : 0);
}

}  // namespace

Outcome run_target(const Environment& environment, const std::function<void()>& body,
                   double timeout_s) {
  int fds[2];
  EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0);
  const double begin = seconds_now();
  const pid_t pid = fork();
  if (pid == 0) child(fds[1], environment, body);
  close(fds[1]);
  Outcome outcome;
  bool ended = false;
  while (!ended) {
    pollfd waiting{fds[0], POLLIN, 0};
    poll(&waiting, 1, 10);
    char bytes[4096];
    if ((waiting.revents & POLLIN) != 0) {
      const ssize_t count = read(fds[0], bytes, sizeof bytes);
      if (count > 0) outcome.error.append(bytes, static_cast<size_t>(count));
      if (count > 0) continue;
    }
    int wait_status = 0;
    if (waitpid(pid, &wait_status, WNOHANG) == pid) {
      outcome.status = exit_status(wait_status);
      ended = true;
    } else if (seconds_now() - begin > timeout_s) {
      kill(pid, SIGKILL);
      waitpid(pid, &wait_status, 0);
      outcome.status = exit_status(wait_status);
      outcome.error += "(killed: it took too long)";
      ended = true;
    }
  }
  outcome.seconds = seconds_now() - begin;
  close(fds[0]);
  return outcome;
}

bool takes_less(double seconds, const std::function<Outcome()>& run) {
  double fastest = 1e9;
  for (int attempt = 0; attempt < 5; ++attempt) {
    fastest = std::min(fastest, run().seconds);
    if (fastest < seconds) return true;
  }
  fprintf(stderr, "the fastest of five took %.2f s\n", fastest);
  return false;
}

std::string cupti_without(const std::vector<std::string>& functions) {
  std::ifstream original(FAKE_CUPTI_DIR "/libcupti.so.13", std::ios::binary);
  std::string image((std::istreambuf_iterator<char>(original)), std::istreambuf_iterator<char>());
  for (const std::string& function : functions) {
    const std::string name = '\0' + function + '\0';
    size_t spoilt = 0;
    for (size_t at = 0; (at = image.find(name, at)) != std::string::npos; ++at, ++spoilt) {
      image[at + 1] = 'X';
    }
    EXPECT_GT(spoilt, 0u) << function;
  }
  char pattern[] = "/tmp/gpuprof-cupti-XXXXXX";
  const std::string directory = mkdtemp(pattern);
  std::ofstream(directory + "/libcupti.so.13", std::ios::binary) << image;
  return directory;
}

void start_driver(bool keep_armed) {
  ProbeTap::install(GPUPROF_SHIM_FILE);
  ProbeTap::attach();
  if (cuInit(0) != CUDA_SUCCESS) {
    fprintf(stderr, "cuInit failed\n");
    _exit(71);
  }
  if (!keep_armed || getenv("GPU_PROFILED_ARM") == nullptr) return;
  ShimView shim;
  if (shim.exists() && shim.status().state == GPUPROF_STATE_TRACING)
    shim.request(GPUPROF_TIER_TRACE);
}

ShimView::ShimView() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string link = std::filesystem::read_symlink(entry.path(), error).string();
    if (error || link.find("/memfd:" GPUPROF_MEMFD_NAME) != 0) continue;
    const int fd = atoi(entry.path().filename().c_str());
    constexpr size_t kBytes =
        GPUPROF_MODULES_OFFSET + GPUPROF_MODULE_CAPACITY * sizeof(gpuprof_module_entry);
    void* map = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) return;
    auto* base = static_cast<char*>(map);
    status_ = reinterpret_cast<const gpuprof_status_page*>(base);
    control_ = reinterpret_cast<gpuprof_control_page*>(base + GPUPROF_CONTROL_OFFSET);
    modules_ = reinterpret_cast<const gpuprof_module_entry*>(base + GPUPROF_MODULES_OFFSET);
    return;
  }
}

std::string ShimView::reason_text() const { return status_->reason_text; }

void ShimView::request(gpuprof_tier tier, uint32_t lease_ms, uint32_t stack_rate,
                       uint32_t pc_period, uint32_t pc_duty) {
  static uint64_t serial = 1000;
  __atomic_add_fetch(&control_->seq, 1, __ATOMIC_SEQ_CST);
  control_->magic = GPUPROF_CONTROL_MAGIC;
  control_->abi_version = GPUPROF_ABI_VERSION;
  control_->tier = tier;
  control_->pc_period = pc_period;
  control_->pc_duty = pc_duty;
  control_->stack_rate = stack_rate;
  control_->process_rate = stack_rate;
  control_->lease_serial = ++serial;
  control_->lease_ms = lease_ms;
  control_->controller_pid = 1;
  snprintf(control_->controller_name, sizeof control_->controller_name, "test");
  __atomic_add_fetch(&control_->seq, 1, __ATOMIC_SEQ_CST);
}

void ShimView::grant(uint64_t serial, const std::vector<gpuprof_gpu_uuid>& gpus) {
  __atomic_add_fetch(&control_->seq, 1, __ATOMIC_SEQ_CST);
  control_->pc_grant = GPUPROF_PC_GRANT_LISTED;
  control_->pc_grant_serial = serial;
  control_->pc_grant_count = static_cast<uint32_t>(gpus.size());
  for (size_t i = 0; i < gpus.size(); ++i) control_->pc_gpus[i] = gpus[i];
  __atomic_add_fetch(&control_->seq, 1, __ATOMIC_SEQ_CST);
}

bool ShimView::wait_until(const std::function<bool()>& condition,
                          const std::function<void()>& meanwhile, int timeout_ms) const {
  const double deadline = seconds_now() + timeout_ms / 1000.0;
  while (!condition()) {
    if (seconds_now() > deadline) return false;
    if (meanwhile) meanwhile();
    usleep(1000);
  }
  return true;
}

void ShimView::wait_for_round() const {
  // The heartbeat closes a round: the one that was under way, and the next.
  for (int round = 0; round < 2; ++round) {
    const uint64_t before = __atomic_load_n(&status_->heartbeat_ns, __ATOMIC_ACQUIRE);
    EXPECT_TRUE(wait_until(
        [&] { return __atomic_load_n(&status_->heartbeat_ns, __ATOMIC_ACQUIRE) != before; }));
  }
}

bool ShimView::wait_for(gpuprof_state state, const std::function<void()>& meanwhile,
                        int timeout_ms) const {
  return wait_until(
      [&] {
        return __atomic_load_n(&status_->state, __ATOMIC_ACQUIRE) == static_cast<uint32_t>(state);
      },
      meanwhile, timeout_ms);
}

}  // namespace gpuprof::testing

// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/fake_cuda/program.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>

extern char** environ;

namespace fakecuda {
namespace {

double now_seconds() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

std::string take_file(const std::string& path) {
  std::ifstream in(path);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  unlink(path.c_str());
  return text;
}

bool ours(const char* entry) {
  for (const char* prefix :
       {"FAKE_CUDA_", "GPU_PROFILED_", "CUDA_INJECTION64_PATH", "LD_LIBRARY_PATH"}) {
    if (std::string(entry).rfind(prefix, 0) == 0) return true;
  }
  return false;
}

}  // namespace

int64_t Outcome::number(const std::string& key) const {
  const std::string quoted = "\"" + key + "\":";
  const size_t at = truth.find(quoted);
  return at == std::string::npos ? -1 : strtoll(truth.c_str() + at + quoted.size(), nullptr, 10);
}

Program::Program(const std::vector<std::string>& arguments, const Environment& environment) {
  static std::atomic<int> serial{0};
  const char* directory = getenv("TMPDIR");
  prefix_ = std::string(directory ? directory : "/tmp") + "/fake_cuda." + std::to_string(getpid()) +
            "." + std::to_string(serial.fetch_add(1));
  const char* shim = getenv("GPU_PROFILED_TEST_SHIM");  // another build, as in tests/e2e
  Environment all = {{"CUDA_INJECTION64_PATH", shim != nullptr ? shim : SHIM_PATH},
                     {"GPU_PROFILED_CUPTI_PATH", CUPTI13_PATH},
                     {"FAKE_CUDA_TRUTH", prefix_ + ".truth"},
                     {"FAKE_CUDA_REPORT", prefix_ + ".report"}};
  for (const auto& [key, value] : environment) all[key] = value;
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!ours(*entry)) entries.emplace_back(*entry);
  }
  for (const auto& [key, value] : all) entries.push_back(key + "=" + value);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  std::vector<char*> envp;
  for (const std::string& entry : entries) envp.push_back(const_cast<char*>(entry.c_str()));
  envp.push_back(nullptr);
  const std::string errors = prefix_ + ".stderr";
  started_ = now_seconds();
  pid_ = fork();
  if (pid_ != 0) return;
  const int fd = open(errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  dup2(fd, 2);
  close(fd);
  execve(argv[0], argv.data(), envp.data());
  _exit(126);
}

Program::~Program() {
  if (pid_ > 0) wait(0);
}

void Program::signal(int number) const { kill(pid_, number); }

Outcome Program::wait(double seconds) {
  Outcome outcome;
  int status = 0;
  pid_t done = 0;
  const double until = now_seconds() + seconds;
  while ((done = waitpid(pid_, &status, WNOHANG)) == 0 && now_seconds() < until) usleep(2000);
  outcome.seconds = now_seconds() - started_;
  if (done == 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, &status, 0);
  } else {
    outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  pid_ = -1;
  outcome.errors = take_file(prefix_ + ".stderr");
  outcome.truth = take_file(prefix_ + ".truth");
  outcome.violations = take_file(prefix_ + ".report");
  return outcome;
}

}  // namespace fakecuda

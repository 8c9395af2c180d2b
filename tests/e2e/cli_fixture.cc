// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/cli_fixture.h"

#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace gpuprof::e2e {
namespace {

namespace fs = std::filesystem;

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (const std::string& text : strings) out.push_back(const_cast<char*>(text.c_str()));
  out.push_back(nullptr);
  return out;
}

int temporary_file(std::string& path) {
  char name[] = "/tmp/gpuprof-e2e-XXXXXX";
  const int fd = ::mkostemp(name, O_CLOEXEC);
  path = name;
  return fd;
}

}  // namespace

Child::Child(const std::vector<std::string>& argv, const Setup& setup) {
  const UniqueFd out(temporary_file(out_path_)), err(temporary_file(err_path_));
  std::vector<std::string> environment = {"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/root",
                                          "TZ=UTC", "LD_LIBRARY_PATH=" FAKE_LIBRARIES};
  environment.insert(environment.end(), setup.environment.begin(), setup.environment.end());
  const std::vector<char*> args = pointers(argv), envp = pointers(environment);
  int master = -1, slave = -1;
  if (setup.terminal) {
    if (::openpty(&master, &slave, nullptr, nullptr, nullptr) != 0) std::abort();
    ::fcntl(master, F_SETFD, FD_CLOEXEC);
    terminal_.reset(master);
  }
  pid_ = ::fork();
  if (pid_ == 0) {
    if (setup.terminal) {
      ::setsid();
      ::ioctl(slave, TIOCSCTTY, 0);
      ::dup2(slave, 0);
      ::dup2(slave, 2);
      ::close(slave);
    } else {
      ::setpgid(0, 0);  // so that its children can be ended with it
      ::dup2(::open("/dev/null", O_RDONLY), 0);
      ::dup2(err.get(), 2);
    }
    ::dup2(out.get(), 1);
    if (!setup.directory.empty() && ::chdir(setup.directory.c_str()) != 0) ::_exit(120);
    if (setup.uid != 0 && (::setgid(setup.uid) != 0 || ::setuid(setup.uid) != 0)) ::_exit(121);
    ::execve(args[0], args.data(), envp.data());
    ::_exit(122);
  }
  if (slave >= 0) ::close(slave);
}

Child::~Child() {
  if (!done_) {
    ::kill(-pid_, SIGKILL);
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ::unlink(out_path_.c_str());
  ::unlink(err_path_.c_str());
}

std::string Child::drain_terminal() const {
  std::string out;
  char buffer[4096];
  ssize_t got = 0;
  while ((got = ::read(terminal_.get(), buffer, sizeof buffer)) > 0)
    out.append(buffer, static_cast<size_t>(got));
  return out;
}

Outcome Child::finish() {
  Outcome outcome;
  if (terminal_.valid()) outcome.err = drain_terminal();  // until the last holder has closed it
  int status = 0;
  ::waitpid(pid_, &status, 0);
  done_ = true;
  outcome.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  outcome.out = read_file(out_path_);
  if (!terminal_.valid()) outcome.err = read_file(err_path_);
  return outcome;
}

void Child::send(int signal) const { ::kill(pid_, signal); }

void Child::type(std::string_view keys) const {
  [[maybe_unused]] const ssize_t put = ::write(terminal_.get(), keys.data(), keys.size());
}

void CliTest::SetUp() {
  if (::geteuid() != 0) GTEST_SKIP() << "eBPF needs root here";
  char pattern[] = "/tmp/gpuprof-cli-XXXXXX";
  directory_ = ::mkdtemp(pattern);
  fs::permissions(directory_, fs::perms::all);
}

void CliTest::TearDown() {
  if (!directory_.empty()) fs::remove_all(directory_);
}

Child::Setup CliTest::setup(std::vector<std::string> environment) const {
  Child::Setup out;
  out.environment = std::move(environment);
  out.directory = directory_;
  return out;
}

Outcome CliTest::gpu_profiled(std::vector<std::string> args, std::vector<std::string> environment,
                              uid_t uid) {
  args.insert(args.begin(), GPU_PROFILED_PATH);
  environment.push_back("GPU_PROFILED_SHIM=" SHIM_PATH);
  Child::Setup how = setup(std::move(environment));
  how.uid = uid;
  return Child(args, how).finish();
}

std::vector<std::string> CliTest::injected() const { return {"CUDA_INJECTION64_PATH=" SHIM_PATH}; }

void CliTest::wait_until_mapped(pid_t pid, const char* library) {
  for (int i = 0; i < 1000; ++i) {
    if (read_file("/proc/" + std::to_string(pid) + "/maps").find(library) != std::string::npos) {
      ::usleep(100'000);  // InitializeInjection goes on after its mapping
      return;
    }
    ::usleep(10'000);
  }
  FAIL() << library << " was never mapped";
}

std::vector<std::string> CliTest::profiles() const {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(directory_)) {
    const std::string name = entry.path().filename();
    if (name.ends_with(".pb.gz")) out.push_back(name);
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::string read_file(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path, std::ios::binary).rdbuf();
  return out.str();
}

long long json_number(const std::string& json, const std::string& after, const std::string& name) {
  size_t at = json.find("\"" + after + "\"");
  if (at == std::string::npos) return -1;
  at = json.find("\"" + name + "\": ", at);
  if (at == std::string::npos) return -1;
  return std::atoll(json.c_str() + at + name.size() + 4);
}

char state_of(pid_t pid) {
  const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
  const size_t close = stat.rfind(')');
  return close == std::string::npos || close + 2 >= stat.size() ? '?' : stat[close + 2];
}

void expect_one_line(const Outcome& outcome, const std::string& text) {
  EXPECT_NE(outcome.err.find(text), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.rfind("gpu-profiled: ", 0), 0u) << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
}

}  // namespace gpuprof::e2e

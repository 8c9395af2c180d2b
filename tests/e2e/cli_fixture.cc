// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/cli_fixture.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "proto/usdt_abi.h"

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

std::string named_or(const char* variable, const char* built) {
  const char* named = ::getenv(variable);
  return named != nullptr ? named : built;
}

}  // namespace

const std::string& daemon_path() {
  static const std::string path = named_or("GPU_PROFILED_TEST_DAEMON", BUILT_DAEMON_PATH);
  return path;
}

const std::string& shim_path() {
  static const std::string path = named_or("GPU_PROFILED_TEST_SHIM", BUILT_SHIM_PATH);
  return path;
}

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

bool Child::read_terminal() {
  char buffer[4096];
  const ssize_t got = ::read(terminal_.get(), buffer, sizeof buffer);
  if (got > 0) shown_.append(buffer, static_cast<size_t>(got));
  return got > 0;
}

bool Child::shows(std::string_view text) {
  return soon([&] {
    pollfd ready = {terminal_.get(), POLLIN, 0};
    if (::poll(&ready, 1, 0) == 1) read_terminal();
    return shown_.find(text) != std::string::npos;
  });
}

std::string Child::error_so_far() const { return read_file(err_path_); }

Outcome Child::finish() {
  Outcome outcome;
  while (terminal_.valid() && read_terminal()) {  // until the last holder has closed it
  }
  int status = 0;
  ::waitpid(pid_, &status, 0);
  done_ = true;
  outcome.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  outcome.out = read_file(out_path_);
  outcome.err = terminal_.valid() ? shown_ : read_file(err_path_);
  return outcome;
}

void Child::send(int signal) const { ::kill(pid_, signal); }

void Child::type(std::string_view keys) const {
  [[maybe_unused]] const ssize_t put = ::write(terminal_.get(), keys.data(), keys.size());
}

void CliTest::SetUp() {
  if (::geteuid() != 0 && ::getenv("REQUIRE_ROOT") == nullptr)
    GTEST_SKIP() << "eBPF needs root here";
  ASSERT_EQ(::geteuid(), 0u) << "root is promised, and eBPF needs it";
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
  args.insert(args.begin(), daemon_path());
  environment.push_back("GPU_PROFILED_SHIM=" + shim_path());
  Child::Setup how = setup(std::move(environment));
  how.uid = uid;
  return Child(args, how).finish();
}

std::vector<std::string> CliTest::injected() const {
  return {"CUDA_INJECTION64_PATH=" + shim_path()};
}

Outcome CliTest::attach_for(pid_t pid, std::vector<std::string> args, uint64_t executions) {
  args.insert(args.begin(), {daemon_path(), "--pid", std::to_string(pid)});
  Child attach(args, setup());
  wait_until_traced(pid, executions);
  attach.send(SIGINT);
  return attach.finish();
}

void CliTest::wait_until_mapped(pid_t pid, const char* library) {
  EXPECT_TRUE(soon([&] {
    return read_file("/proc/" + std::to_string(pid) + "/maps").find(library) != std::string::npos;
  })) << library
      << " was never mapped";
}

void CliTest::wait_until_injected(pid_t pid) {
  EXPECT_TRUE(soon([&] {
    const auto page = shim_page(pid);
    return page && page->state != GPUPROF_STATE_INVALID;
  })) << "the shim was never initialised";
}

void CliTest::wait_until_traced(pid_t pid, uint64_t executions) {
  std::optional<gpuprof_status_page> first, now;
  EXPECT_TRUE(soon([&] {
    now = shim_page(pid);
    if (!now) return false;
    if (!first) first = now;
    return now->state == GPUPROF_STATE_TRACING &&
           now->probe_totals[GPUPROF_PROBE_EXEC] >=
               first->probe_totals[GPUPROF_PROBE_EXEC] + executions;
  })) << "process "
      << pid << " has no trace: state " << (now ? now->state : 0) << ' '
      << (now ? now->reason_text : "no page");
}

pid_t CliTest::wait_for_program(const std::string& comm, pid_t other) const {
  pid_t found = 0;
  EXPECT_TRUE(soon([&] {
    for (const auto& entry : fs::directory_iterator("/proc")) {
      const pid_t pid = std::atoi(entry.path().filename().c_str());
      std::error_code gone;
      if (pid == 0 || pid == other || comm_of(pid) != comm) continue;
      if (fs::read_symlink(entry.path() / "cwd", gone) == directory_) found = pid;
    }
    return found != 0;
  })) << comm
      << " never began";
  return found;
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

bool soon(const std::function<bool()>& condition) {
  using Clock = std::chrono::steady_clock;
  for (const auto end = Clock::now() + std::chrono::minutes(1); Clock::now() < end;) {
    if (condition()) return true;
    ::usleep(5'000);
  }
  return condition();
}

std::optional<gpuprof_status_page> shim_page(pid_t pid) {
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd", gone)) {
    if (!fs::read_symlink(entry.path(), gone).string().starts_with("/memfd:" GPUPROF_MEMFD_NAME))
      continue;
    gpuprof_status_page page = {};
    const UniqueFd fd(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
    const bool whole = ::pread(fd.get(), &page, sizeof page, 0) == sizeof page &&
                       page.magic == GPUPROF_STATUS_MAGIC && page.seq % 2 == 0;
    if (whole) return page;
  }
  return {};
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

std::string comm_of(pid_t pid) {
  std::string comm = read_file("/proc/" + std::to_string(pid) + "/comm");
  if (comm.ends_with('\n')) comm.pop_back();
  return comm;
}

void expect_one_line(const Outcome& outcome, const std::string& text) {
  EXPECT_NE(outcome.err.find(text), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.rfind("gpu-profiled: ", 0), 0u) << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
}

}  // namespace gpuprof::e2e

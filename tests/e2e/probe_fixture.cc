// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/probe_fixture.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/e2e/probe_site.h"

namespace gpuprof::probe {

void KeepingSink::on_launch(const EventSource& from, const gpuprof_launch_v1& r,
                            const StackSample* stack) {
  note(from);
  SeenLaunch seen;
  seen.record = r;
  seen.process = from.process;
  seen.tid = from.tid;
  if (stack) {
    seen.has_stack = true;
    seen.regs.assign(stack->regs.begin(), stack->regs.end());
    seen.stack_address = stack->stack_address;
    seen.stack_top = stack->stack_top;
    seen.flags = stack->flags;
    seen.bytes.assign(stack->bytes.begin(), stack->bytes.end());
    seen.python.assign(stack->python.begin(), stack->python.end());
    seen.python_end = stack->python_end;
  }
  launches.push_back(std::move(seen));
}

const std::vector<Mode>& all_modes() {
  static const std::vector<Mode> modes = {
      {"Default", ""},
      {"NoUprobeMulti", "no-uprobe-multi"},
      {"NoSleepable", "no-sleepable"},
      {"NoNop5", "no-nop5"},
      {"NoFindVma", "no-find-vma"},
      {"Oldest", "no-uprobe-multi,no-sleepable,no-nop5,no-find-vma"},
  };
  return modes;
}

std::string mode_name(const testing::TestParamInfo<Mode>& info) { return info.param.name; }

std::string site_library_path() {
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(probe_site_address(GPUPROF_PROBE_EXEC)), &info) == 0) {
    return {};
  }
  return info.dli_fname;
}

gpuprof_exec_v1 sample_exec(uint64_t n) {
  gpuprof_exec_v1 exec{};
  exec.start_ns = 1'000'000 + n * 10;
  exec.end_ns = exec.start_ns + n % 7;
  exec.correlation = static_cast<uint32_t>(n);
  exec.epoch = 3;
  exec.name_id = n * 0x9e3779b97f4a7c15ull;
  exec.kind = 1 + n % 3;
  exec.device_id = 1;
  exec.context_id = 2;
  exec.stream_id = 7;
  exec.graph_node = ~n;
  exec.bytes = n << 20;
  exec.grid[0] = 1;
  exec.block[2] = 64;
  exec.flags = n & 1;
  return exec;
}

gpuprof_launch_v1 sample_launch(uint32_t correlation) {
  gpuprof_launch_v1 launch{};
  launch.time_ns = 42;
  launch.correlation = correlation;
  launch.epoch = 1;
  launch.name_id = 0x1234567890abcdefull;
  launch.weight_q32 = 1ull << 32;
  launch.kind = GPUPROF_KIND_KERNEL;
  launch.context_id = 9;
  launch.api_domain = 1;
  launch.api_id = 307;
  launch.tid = static_cast<uint32_t>(gettid());
  return launch;
}

int in_child(const std::function<int()>& body) {
  const pid_t pid = fork();
  if (pid == 0) _exit(body());
  int status = -1;
  waitpid(pid, &status, 0);
  return status;
}

void ProbeE2e::SetUp() {
  if (geteuid() != 0 && getenv("REQUIRE_ROOT") == nullptr)
    GTEST_SKIP() << "needs root to load eBPF programs";
  ASSERT_EQ(geteuid(), 0u) << "root is promised, and loading eBPF programs needs it";
}

void ProbeE2e::start(ProbeOptions options) {
  ASSERT_TRUE(options.add_fallbacks(GetParam().fallbacks));
  auto created = ProbeSession::create(options, sink);
  ASSERT_TRUE(created) << created.error().message;
  session = std::move(*created);
}

void ProbeE2e::attach() {
  const std::string path = site_library_path();
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(fd.valid()) << path;
  auto attached = session->attach(fd.get(), path);
  ASSERT_TRUE(attached) << attached.error().message;
  cookie = *attached;
}

void ProbeE2e::watch_self() {
  ASSERT_TRUE(session->watch({.pid = static_cast<uint32_t>(getpid()), .start_ticks = 0}));
}

void ProbeE2e::poll() {
  auto polled = session->poll(std::chrono::milliseconds(0));
  ASSERT_TRUE(polled) << polled.error().message;
}

}  // namespace gpuprof::probe

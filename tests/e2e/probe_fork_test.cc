// SPDX-License-Identifier: Apache-2.0
//
// Children of a process whose probe sites are attached and optimised: the shim's emit() runs no
// site in them, whichever way they were made. (On 6.18 a forked child that runs one dies of
// SIGSEGV.)
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim/core/owner.h"
#include "shim/core/probes.h"
#include "tests/e2e/probe_fixture.h"

extern "C" void gpuprof_fire_launch_v1(const void*, uint32_t, uint64_t);

namespace gpuprof::probe {
namespace {

int emit_in_child(void*) {
  const gpuprof_launch_v1 launch = sample_launch(7);
  for (int i = 0; i < 100; i++) {
    if (shim::emit(GPUPROF_PROBE_LAUNCH, &launch, 1) != 0) _exit(1);
  }
  _exit(0);
}

int status_of(pid_t pid) {
  int status = -1;
  return waitpid(pid, &status, 0) == pid ? status : -1;
}

int with_stack(int flags) {
  static char stack[64 << 10] __attribute__((aligned(16)));
  return clone(emit_in_child, stack + sizeof(stack), flags | SIGCHLD, nullptr);
}

class ProbeFork : public ProbeE2e {};
INSTANTIATE_TEST_SUITE_P(Modes, ProbeFork, testing::ValuesIn(all_modes()), mode_name);

TEST_P(ProbeFork, ChildrenRunNoSiteHoweverTheyAreMade) {
  const auto owned = shim::own_process();
  ASSERT_TRUE(owned == shim::Status::kOk || owned == shim::Status::kAlready);
  start();
  const UniqueFd self(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  auto attached = session->attach(self.get(), "the test");
  ASSERT_TRUE(attached) << attached.error().message;
  watch_self();
  // Nothing of ours runs at fork: no atfork handler is installed here.
  const gpuprof_launch_v1 launch = sample_launch(1);
  for (int i = 0; i < 100; i++) {
    ASSERT_EQ(shim::emit(GPUPROF_PROBE_LAUNCH, &launch, 1), 1u);
    if (i % 32 == 0) poll();
  }
#if defined(__x86_64__)
  const auto* site = reinterpret_cast<const uint8_t*>(&gpuprof_fire_launch_v1);
  const bool nop5 = session->describe().find("5-byte nop") != std::string::npos;
  ASSERT_EQ(nop5 ? site[1] : site[0], nop5 ? 0xe8 : 0xcc) << "not attached, or not optimised";
#endif
  pid_t pid = fork();
  if (pid == 0) emit_in_child(nullptr);
  EXPECT_EQ(status_of(pid), 0) << "fork";
  pid = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  if (pid == 0) emit_in_child(nullptr);
  EXPECT_EQ(status_of(pid), 0) << "raw clone";
  EXPECT_EQ(status_of(with_stack(CLONE_VM | CLONE_VFORK)), 0) << "vfork";
  EXPECT_EQ(status_of(with_stack(CLONE_VM)), 0) << "CLONE_VM";
  poll();
  session->flush();
  EXPECT_EQ(sink.launches.size(), 100u);
  EXPECT_TRUE(sink.lost.empty());
}

}  // namespace
}  // namespace gpuprof::probe

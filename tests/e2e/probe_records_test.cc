// SPDX-License-Identifier: Apache-2.0
//
// Records arrive as they were written, in every mode, and attaching leaves no trace.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "tests/e2e/probe_fixture.h"
#include "tests/e2e/probe_site.h"

namespace gpuprof::probe {
namespace {

class ProbeRecords : public ProbeE2e {};
INSTANTIATE_TEST_SUITE_P(Modes, ProbeRecords, testing::ValuesIn(all_modes()), mode_name);

template <class Record>
void expect_equal(const std::vector<Record>& sent, const std::vector<Record>& seen) {
  ASSERT_EQ(sent.size(), seen.size());
  EXPECT_EQ(std::memcmp(sent.data(), seen.data(), sent.size() * sizeof(Record)), 0);
}

uint64_t own_start_ticks() {
  std::ifstream file("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  text.erase(0, text.rfind(')') + 2);
  std::istringstream fields(text);
  std::string field;
  for (int i = 3; i <= 22; i++) fields >> field;
  return std::stoull(field);
}

TEST_P(ProbeRecords, UsesWhatTheModeAllows) {
  start();
  const std::string text = session->describe();
  const std::string& off = GetParam().fallbacks;
  EXPECT_EQ(text.find("uprobe_multi") == std::string::npos,
            off.find("uprobe-multi") != std::string::npos)
      << text;
  EXPECT_EQ(text.find("not sleepable") != std::string::npos,
            off.find("sleepable") != std::string::npos)
      << text;
  EXPECT_EQ(text.find("1-byte nop") != std::string::npos, off.find("nop5") != std::string::npos)
      << text;
  EXPECT_EQ(text.find("no bpf_find_vma") != std::string::npos,
            off.find("find-vma") != std::string::npos)
      << text;
}

TEST_P(ProbeRecords, ArriveBitExactInOrder) {
  start();
  attach();
  watch_self();
  std::vector<gpuprof_exec_v1> sent;
  for (uint32_t count : {1u, 2u, 9u, 36u, 73u, 128u, 182u, 255u, 256u}) {
    const size_t first = sent.size();
    for (uint32_t i = 0; i < count; i++) sent.push_back(sample_exec(sent.size()));
    probe_site_fire(GPUPROF_PROBE_EXEC, &sent[first], count, 1000 + first);
  }
  poll();
  expect_equal(sent, sink.execs);
  EXPECT_EQ(sink.last_process, (ProcessId{static_cast<uint32_t>(getpid()), own_start_ticks()}));
  EXPECT_EQ(sink.last_tid, static_cast<uint32_t>(gettid()));
  EXPECT_EQ(sink.last_uid, geteuid());
  char comm[16] = {};
  prctl(PR_GET_NAME, comm);
  EXPECT_EQ(sink.last_comm, comm);
  EXPECT_TRUE(sink.lost.empty());
}

TEST_P(ProbeRecords, EveryProbeArrives) {
  start();
  attach();
  watch_self();
  gpuprof_process_v1 process{};
  process.abi_version = GPUPROF_ABI_VERSION;
  process.pid = 4;
  process.memfd = 101;
  gpuprof_pc_sample_v1 samples[2] = {};
  samples[1].cubin_key = 0xabcdef;
  gpuprof_name_v1 name{};
  name.id = 77;
  name.kind = GPUPROF_NAME_FUNCTION;
  name.total_bytes = name.chunk_bytes = 9;
  std::memcpy(name.bytes, "_Z3addPfi", 9);
  gpuprof_module_v1 module{};
  module.event = GPUPROF_MODULE_LOADED;
  module.hash = 5;
  gpuprof_device_v1 device{};
  std::strcpy(device.name, "NVIDIA H200");
  gpuprof_window_v1 window{};
  window.event = GPUPROF_WINDOW_OPEN;
  window.mode = 1;
  gpuprof_drop_v1 drop{};
  drop.drop_class = GPUPROF_DROP_CUPTI;
  drop.total = 12;
  const gpuprof_launch_v1 launch = sample_launch(8);

  probe_site_fire(GPUPROF_PROBE_PROCESS, &process, 1, 0);
  probe_site_fire(GPUPROF_PROBE_LAUNCH, &launch, 1, 0);
  probe_site_fire(GPUPROF_PROBE_PC_SAMPLE, samples, 2, 0);
  probe_site_fire(GPUPROF_PROBE_NAME, &name, 1, 0);
  probe_site_fire(GPUPROF_PROBE_MODULE, &module, 1, 0);
  probe_site_fire(GPUPROF_PROBE_DEVICE, &device, 1, 0);
  probe_site_fire(GPUPROF_PROBE_WINDOW, &window, 1, 0);
  probe_site_fire(GPUPROF_PROBE_DROP, &drop, 1, 0);
  poll();

  expect_equal({process}, sink.processes);
  ASSERT_EQ(sink.launches.size(), 1u);
  expect_equal<gpuprof_launch_v1>({launch}, {sink.launches[0].record});
  expect_equal({samples[0], samples[1]}, sink.pc_samples);
  ASSERT_EQ(sink.names.size(), 1u);
  EXPECT_EQ(sink.names[0].name, "_Z3addPfi");
  expect_equal({module}, sink.modules);
  expect_equal({device}, sink.devices);
  expect_equal({window}, sink.windows);
  expect_equal({drop}, sink.drops);
}

TEST_P(ProbeRecords, BadCountsAndPointersAreCountedNotRead) {
  start();
  attach();
  watch_self();
  const std::vector<gpuprof_exec_v1> many(300, sample_exec(1));
  probe_site_fire(GPUPROF_PROBE_EXEC, many.data(), 0, 0);
  probe_site_fire(GPUPROF_PROBE_EXEC, many.data(), 257, 0);
  probe_site_fire(GPUPROF_PROBE_EXEC, many.data(), 0x80000001u, 0);
  probe_site_fire(GPUPROF_PROBE_NAME, many.data(), 129, 0);  // over the bytes
  probe_site_fire(GPUPROF_PROBE_EXEC, nullptr, 4, 0);
  probe_site_fire(GPUPROF_PROBE_LAUNCH, nullptr, 1, 0);
  probe_site_fire(GPUPROF_PROBE_EXEC, many.data(), 256, 4);
  poll();
  session->flush();
  EXPECT_EQ(sink.execs.size(), 256u);
  const ProbeCounters counters = session->counters();
  EXPECT_EQ(counters.bpf[GPUPROF_BPF_BAD_COUNT], 4u);
  EXPECT_EQ(counters.bpf[GPUPROF_BPF_FAULT], 2u);
  EXPECT_EQ((sink.lost[{GPUPROF_PROBE_EXEC, LossReason::kFault}]), 4u);
  EXPECT_EQ((sink.lost[{GPUPROF_PROBE_LAUNCH, LossReason::kFault}]), 1u);
}

TEST_P(ProbeRecords, SemaphoresRiseOnAttachAndFallOnDetach) {
  start();
  ASSERT_EQ(probe_site_semaphore(GPUPROF_PROBE_EXEC), 0);
  attach();
  for (uint32_t probe = 1; probe < GPUPROF_PROBE_COUNT; probe++) {
    EXPECT_EQ(probe_site_semaphore(probe), probe == GPUPROF_PROBE_AUTOARM ? 0 : 1) << probe;
  }
  ASSERT_TRUE(session->watch_all(true));
  EXPECT_EQ(probe_site_semaphore(GPUPROF_PROBE_AUTOARM), 1);
  ASSERT_TRUE(session->watch_all(false));
  EXPECT_EQ(probe_site_semaphore(GPUPROF_PROBE_AUTOARM), 0);
  session->detach(cookie);
  for (uint32_t probe = 1; probe < GPUPROF_PROBE_COUNT; probe++) {
    EXPECT_EQ(probe_site_semaphore(probe), 0) << probe;
  }
}

TEST_P(ProbeRecords, SameFileAttachesOnce) {
  start();
  attach();
  const uint64_t first = cookie;
  attach();
  EXPECT_EQ(cookie, first);
  EXPECT_EQ(probe_site_semaphore(GPUPROF_PROBE_EXEC), 1);
}

TEST_P(ProbeRecords, AKilledDaemonLeavesNothingBehind) {
  const int status = in_child([&] {
    start();
    attach();
    if (probe_site_semaphore(GPUPROF_PROBE_EXEC) != 1) return 1;
    raise(SIGKILL);
    return 2;
  });
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  // Links are released by a worker of the kernel.
  for (int i = 0; i < 6000 && probe_site_semaphore(GPUPROF_PROBE_EXEC) != 0; i++) usleep(10'000);
  EXPECT_EQ(probe_site_semaphore(GPUPROF_PROBE_EXEC), 0);
}

}  // namespace
}  // namespace gpuprof::probe

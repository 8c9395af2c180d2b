// SPDX-License-Identifier: Apache-2.0
//
// One process, whose mappings and whose program change under the recorder.
#include "daemon/cli/recorder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "daemon/target/process.h"

namespace gpuprof::cli {
namespace {

uint64_t now_ns() {
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// Of ourselves: the recorder looks at a process only through /proc.
class RecorderTest : public testing::Test {
 protected:
  void SetUp() override {
    auto id = target::process_id(static_cast<uint32_t>(::getpid()));
    ASSERT_TRUE(id.has_value());
    id_ = *id;
  }
  [[nodiscard]] probe::EventSource source(uint32_t exec_id) const {
    return {.process = id_,
            .tid = id_.pid,
            .uid = 0,
            .exec_id = exec_id,
            .watched = true,
            .time_ns = now_ns(),
            .comm = "test"};
  }
  // A launch whose stack is the one pc; the pc as the stack table keeps it.
  uint64_t launch(uint32_t exec_id, uint64_t pc) {
    std::array<uint64_t, GPUPROF_REGS_MAX> regs{};
    regs[16] = pc;
    regs[7] = 0x7fff00000000;
    const std::array<uint8_t, 256> bytes{};
    const StackSample sample{.regs = regs,
                             .stack_address = regs[7],
                             .stack_top = regs[7] + bytes.size(),
                             .bytes = bytes};
    gpuprof_launch_v1 record = {};
    record.correlation = ++correlation_;
    record.epoch = 1;
    record.weight_q32 = uint64_t{1} << 32;
    recorder_.on_launch(source(exec_id), record, &sample);
    const auto pcs = recorder_.stacks().pcs(recorder_.stacks().size());
    EXPECT_FALSE(pcs.empty());
    return pcs.empty() ? 0 : pcs[0];
  }
  std::string module_of(ProcessId process, uint64_t pc) {
    const symbolize::SymbolizedPc& found = recorder_.resolve(process, pc);
    return recorder_.modules(process).at(found.module).path;
  }

  ProcessId id_;
  uint32_t correlation_ = 0;
  std::vector<ProcessId> admitted_;
  Recorder recorder_{[this](ProcessId id, const gpuprof_process_v1&) { admitted_.push_back(id); }};
};

TEST_F(RecorderTest, TotalsThatCannotBeTrueAreLeftOut) {
  ProcessRecord* const record = recorder_.add_process(id_, {});
  ASSERT_NE(record, nullptr);
  target::ShimStatus page;
  page.probe_totals[GPUPROF_PROBE_EXEC] = 5000;
  page.drop_totals[GPUPROF_DROP_CUPTI] = 7;
  recorder_.set_totals(id_, page);
  EXPECT_EQ(record->implausible_emitted, 0u);
  EXPECT_EQ(record->implausible_drops, 0u);
  page.probe_totals.fill(0x4141414141414141);
  page.drop_totals.fill(0x4141414141414141);
  recorder_.set_totals(id_, page);
  EXPECT_EQ(record->emitted[GPUPROF_PROBE_EXEC], 5000u) << "what was told before stays";
  EXPECT_EQ(record->drops[GPUPROF_DROP_CUPTI], 7u);
  EXPECT_NE(record->implausible_emitted & 1u << GPUPROF_PROBE_EXEC, 0u);
  EXPECT_NE(record->implausible_drops & uint64_t{1} << GPUPROF_DROP_CUPTI, 0u);
}

// Two ranks that each call their GPU number 0, and one of them a second one whose record is
// missing.
TEST_F(RecorderTest, GpusAreCountedByTheirUuids) {
  gpuprof_exec_v1 exec = {};
  exec.start_ns = 1;
  exec.end_ns = 2;
  for (const uint8_t gpu : {1, 2, 1}) {
    id_.pid = (1u << 23) + gpu * 10 + static_cast<uint32_t>(recorder_.device_count());
    ASSERT_NE(recorder_.add_process(id_, {}), nullptr);
    gpuprof_device_v1 device = {};
    device.uuid[0] = gpu;
    recorder_.on_device(source(1), device);
    recorder_.on_execs(source(1), {&exec, 1});
  }
  EXPECT_EQ(recorder_.device_count(), 2u);
  exec.device_id = 1;
  recorder_.on_execs(source(1), {&exec, 1});
  EXPECT_EQ(recorder_.device_count(), 3u);
  EXPECT_EQ(recorder_.totals().devices, 3u);
}

// An ELF file other than `like`, with the same code.
std::string copy_of(const char* like) {
  char name[] = "/tmp/gpuprof-recorder-XXXXXX";
  const UniqueFd fd(::mkstemp(name));
  std::ofstream(name, std::ios::binary) << std::ifstream(like, std::ios::binary).rdbuf();
  return name;
}

TEST_F(RecorderTest, OldStacksKeepALibraryThatAnotherOneReplaced) {
#ifndef __x86_64__
  GTEST_SKIP() << "registers are given in x86-64 numbering";
#endif
  // This program's own text, mapped again: what dlopen, dlclose, dlopen do at one address.
  const std::string first = copy_of("/proc/self/exe"), second = copy_of("/proc/self/exe");
  auto maps = target::file_mappings(id_.pid);
  ASSERT_TRUE(maps.has_value());
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").filename();
  const auto text = std::find_if(maps->begin(), maps->end(), [&](const target::Mapping& mapping) {
    return mapping.executable && mapping.file_name() == self;
  });
  ASSERT_NE(text, maps->end());
  const size_t bytes = text->end - text->start;
  void* where = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(where, MAP_FAILED);
  const auto map = [&](const std::string& path) {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY));
    return ::mmap(where, bytes, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, fd.get(),
                  static_cast<off_t>(text->offset)) == where;
  };
  const uint64_t pc = reinterpret_cast<uint64_t>(where) + 64;
  ASSERT_TRUE(map(first));
  const uint64_t before = launch(3, pc);
  // Of two modules the library is the second, as a window that is told now has seen them.
  const uint64_t own = launch(3, reinterpret_cast<uint64_t>(&now_ns));
  recorder_.resolve(id_, own);
  const uint32_t number = recorder_.resolve(id_, before).module;
  EXPECT_EQ(number, 1u);
  ASSERT_TRUE(map(second));
  recorder_.advance(now_ns() + 2'000'000'000);
  const uint64_t after = launch(3, pc);
  EXPECT_NE(before, after);
  EXPECT_EQ(module_of(id_, before), first);
  EXPECT_EQ(module_of(id_, after), second);
  EXPECT_EQ(recorder_.resolve(id_, before).module, number);
  EXPECT_EQ(module_of(id_, before), first) << "and again";
  ::munmap(where, bytes);
  ::unlink(first.c_str());
  ::unlink(second.c_str());
}

TEST_F(RecorderTest, EachProgramOfAProcessIsARecordOfItsOwn) {
  recorder_.on_process(source(7), gpuprof_process_v1{});
  recorder_.on_execs(source(7), std::array<gpuprof_exec_v1, 2>{});
  recorder_.on_process(source(8), gpuprof_process_v1{});
  recorder_.on_execs(source(8), std::array<gpuprof_exec_v1, 3>{});
  recorder_.on_execs(source(7), std::array<gpuprof_exec_v1, 1>{});  // the rings overtake another
  ASSERT_EQ(admitted_.size(), 2u);
  EXPECT_EQ(admitted_[0], id_);
  EXPECT_EQ(admitted_[1], (ProcessId{id_.pid, id_.start_ticks, 1}));
  EXPECT_EQ(recorder_.find(admitted_[0])->executions, 3u);
  EXPECT_EQ(recorder_.find(admitted_[1])->executions, 3u);
}

TEST_F(RecorderTest, StallNamesAreBoundedOverAllPrograms) {
  const auto tell = [&](uint32_t program, size_t names) {
    const ProcessId id{id_.pid, id_.start_ticks, program};
    recorder_.on_process(source(100 + program), gpuprof_process_v1{});
    for (uint64_t i = 0; i < names; ++i)
      recorder_.on_name(source(100 + program), GPUPROF_NAME_STALL, i, "wait");
    const ProcessRecord* const record = recorder_.find(id);
    EXPECT_NE(record, nullptr);
    return record == nullptr ? 0 : record->stall_names.size();
  };
  constexpr uint32_t kFlooding = 2 * Recorder::kMaxStallNamesInAll / Recorder::kMaxStallNames;
  size_t kept = 0;
  for (uint32_t program = 0; program < kFlooding; ++program)
    kept += tell(program, Recorder::kMaxStallNames + 10);
  EXPECT_LE(kept, Recorder::kMaxStallNamesInAll + kFlooding * Recorder::kReservedStallNames);
  EXPECT_EQ(tell(kFlooding, Recorder::kReservedStallNames), Recorder::kReservedStallNames);
  EXPECT_NE(recorder_.find(id_)->names_refused, 0u);
}

TEST_F(RecorderTest, AProcessThatWasThereMayHaveExecedBeforeItsFirstRecord) {
  recorder_.add_process(id_, {});
  recorder_.on_process(source(8), gpuprof_process_v1{});
  ASSERT_EQ(admitted_.size(), 1u);
  EXPECT_EQ(admitted_[0].image, 1u);
}

TEST_F(RecorderTest, UnwatchedProcessesAreNobodys) {
  probe::EventSource other = source(1);
  other.watched = false;
  recorder_.on_process(other, gpuprof_process_v1{});
  EXPECT_TRUE(admitted_.empty());
  EXPECT_TRUE(recorder_.processes().empty());
}

// Heap in use, the blocks that malloc maps by themselves included.
size_t heap_bytes() {
  const struct mallinfo2 info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

TEST_F(RecorderTest, ThousandsOfShortProcessesAreKeptAtLittleCost) {
  constexpr size_t kProcesses = 1200, kWarm = 100;
  std::vector<ProcessId> all;
  size_t warm_bytes = 0;
  for (size_t i = 0; i < kProcesses; ++i) {
    if (i == kWarm) warm_bytes = heap_bytes();  // files and their tables are read by now
    const pid_t child = ::fork();
    if (child == 0) {
      ::pause();
      ::_exit(0);
    }
    auto id = target::process_id(static_cast<uint32_t>(child));
    ASSERT_TRUE(id.has_value());
    id_ = *id;
    all.push_back(id_);
    recorder_.on_process(source(7), gpuprof_process_v1{});
    launch(7, reinterpret_cast<uint64_t>(&heap_bytes) + 1);
    gpuprof_exec_v1 exec = {};
    exec.correlation = correlation_;
    exec.epoch = 1;
    exec.kind = GPUPROF_KIND_KERNEL;
    exec.end_ns = 10;
    recorder_.on_execs(source(7), {&exec, 1});
    recorder_.process_exited(id_);
    recorder_.advance(now_ns() + i * 1'000'000'000);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  const size_t each = (heap_bytes() - warm_bytes) / (kProcesses - kWarm);
  std::printf("%zu bytes for each exited process\n", each);
  EXPECT_LE(each, 24 * 1024);
  EXPECT_EQ(recorder_.tracked_images(), 0u) << "an exited process leaves no exec ids";
  EXPECT_EQ(admitted_.size(), kProcesses);
  EXPECT_EQ(recorder_.programs_refused(), 0u);
  const join::JoinResult result = recorder_.finish();
  ASSERT_EQ(result.processes.size(), kProcesses);
  for (const join::ProcessResult& process : result.processes) {
    EXPECT_EQ(process.lifetime.exact, 1u);
    EXPECT_EQ(process.lifetime.evicted, 0u);
  }
  // Each of their stacks is still symbolised, by the files that are held open.
  for (const ProcessId id : {all.front(), all.back()}) {
    const symbolize::SymbolizedPc& found =
        recorder_.resolve(id, reinterpret_cast<uint64_t>(&heap_bytes) + 1);
    ASSERT_FALSE(found.frames.empty());
    EXPECT_NE(found.frames[0].function.find("heap_bytes"), std::string::npos);
  }
}

// A run of days: each window tells its processes, and keeps those that are alive.
TEST_F(RecorderTest, WhatEndedIsForgottenAfterItsWindow) {
  const ProcessId alive = id_;
  recorder_.add_process(alive, {});
  const auto execute = [&](uint32_t exec_id) {
    gpuprof_exec_v1 exec = {};
    exec.correlation = correlation_;
    exec.epoch = 1;
    exec.kind = GPUPROF_KIND_KERNEL;
    exec.end_ns = 10;
    recorder_.on_execs(source(exec_id), {&exec, 1});
  };
  uint64_t received = 0;
  size_t warm_bytes = 0;
  constexpr int kWindows = 60, kWarm = 10;
  for (int window = 0; window < kWindows; ++window) {
    if (window == kWarm) warm_bytes = heap_bytes();
    id_ = alive;
    launch(1, reinterpret_cast<uint64_t>(&heap_bytes) + 1);
    const uint32_t straddler = correlation_;
    for (uint32_t i = 0; i < 50; ++i) {
      id_ = {(1u << 23) + static_cast<uint32_t>(window) * 50 + i, 5};
      recorder_.on_process(source(7), gpuprof_process_v1{});
      recorder_.on_name(source(7), GPUPROF_NAME_FUNCTION, 1, std::string(10'000, 'k'));
      execute(7);
      recorder_.process_exited(id_);
    }
    const Recorder::Cut cut = recorder_.cut_window();
    EXPECT_EQ(cut.ended.size(), 50u);
    for (const join::ProcessResult& process : cut.result.processes)
      received += process.window.received;
    for (const ProcessId id : cut.ended) recorder_.forget(id);
    EXPECT_EQ(recorder_.processes().size(), 1u);
    // The launch's execution comes in the next window, on the stack that this window kept.
    id_ = alive;
    correlation_ = straddler;
    execute(1);
    const Recorder::Cut next = recorder_.cut_window();
    ASSERT_EQ(next.result.rows.size(), 1u);
    EXPECT_EQ(next.result.rows[0].match, join::Match::kExact);
    EXPECT_FALSE(next.stacks.pcs(next.result.rows[0].stack).empty());
    received += next.result.processes[0].window.received;
    recorder_.advance(now_ns() + static_cast<uint64_t>(window + 1) * 20'000'000'000);
  }
  EXPECT_EQ(received, kWindows * 51u);
  EXPECT_EQ(recorder_.totals().executions, received) << "what was forgotten stays in the totals";
  EXPECT_LE(heap_bytes(), warm_bytes + 256 * 1024);
  recorder_.forget(alive);
  EXPECT_EQ(recorder_.processes().size(), 1u) << "it is alive";
}

TEST_F(RecorderTest, ProgramsBeyondTheLimitAreCounted) {
  const ProcessId self = id_;
  for (uint32_t i = 0; i < Recorder::kMaxProcesses; ++i) {
    id_.pid = (1u << 23) + i;  // above the highest pid there can be: its maps are not read
    recorder_.on_process(source(7), gpuprof_process_v1{});
    recorder_.process_exited(id_);
  }
  EXPECT_EQ(recorder_.programs_refused(), 0u);
  id_ = self;
  recorder_.on_process(source(7), gpuprof_process_v1{});
  EXPECT_EQ(recorder_.programs_refused(), 1u);
  EXPECT_EQ(recorder_.find(self), nullptr);
  EXPECT_EQ(admitted_.size(), Recorder::kMaxProcesses);
  EXPECT_EQ(recorder_.tracked_images(), 0u);
}

}  // namespace
}  // namespace gpuprof::cli

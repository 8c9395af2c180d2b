// SPDX-License-Identifier: Apache-2.0
// A child process is single-stepped through calls, lazily bound PLT entries, qsort, exceptions and
// signal handlers; at every instruction that is looked at, the unwinder must give what libdwfl
// gives.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>

#include "daemon/unwind/address_space.h"
#include "daemon/unwind/file_cache.h"
#include "daemon/unwind/unwinder.h"
#include "tests/unit/unwind/capture.h"
#include "tests/unit/unwind/dwfl_reference.h"

extern "C" void chain_a(int depth, void (*leaf)(void*), void* arg);

namespace gpuprof::unwind {
namespace {

using test::DwflReference;
using test::Sample;

constexpr int kOuterFrames = 8;
constexpr int kMaxSteps = 400'000;

void leaf(void*) {
  int values[] = {5, 2, 9, 1, 3};
  std::qsort(values, 5, sizeof values[0], [](const void* a, const void* b) {
    return *static_cast<const int*>(a) - *static_cast<const int*>(b);
  });
  char text[64];
  std::snprintf(text, sizeof text, "%.3f", values[0] * 1.5);
  raise(SIGUSR1);
}

[[noreturn]] void child_main() {
  signal(SIGUSR1, [](int) {
    chain_a(
        2, [](void*) {}, nullptr);
  });
  ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
  raise(SIGSTOP);
  chain_a(4, leaf, nullptr);
  try {
    chain_a(
        2, [](void*) { throw std::runtime_error("x"); }, nullptr);
  } catch (const std::runtime_error&) {
    chain_a(
        1, [](void*) {}, nullptr);
  }
  _exit(0);
}

// The order of user_regs_struct is the kernel's, not DWARF's.
Sample read_sample(pid_t pid, uint64_t stack_top) {
  user_regs_struct r = {};
  EXPECT_EQ(ptrace(PTRACE_GETREGS, pid, nullptr, &r), 0);
  Sample s;
  const uint64_t dwarf[17] = {r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8,
                              r.r9,  r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rip};
  std::copy(dwarf, dwarf + 17, s.regs.begin());
  s.stack_address = r.rsp;
  s.stack_top = stack_top;
  s.bytes.resize(stack_top - r.rsp);
  const iovec local = {s.bytes.data(), s.bytes.size()};
  const iovec remote = {reinterpret_cast<void*>(r.rsp), s.bytes.size()};
  const ssize_t n = process_vm_readv(pid, &local, 1, &remote, 1, 0);
  s.bytes.resize(n < 0 ? 0 : static_cast<size_t>(n));
  return s;
}

uint64_t end_of_stack(pid_t pid) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/maps", pid);
  FILE* maps = std::fopen(path, "r");
  char line[512];
  unsigned long start = 0;
  unsigned long end = 0;
  uint64_t top = 0;
  while (std::fgets(line, sizeof line, maps) != nullptr) {
    if (std::sscanf(line, "%lx-%lx", &start, &end) == 2 &&
        std::string(line).find("[stack]") != std::string::npos) {
      top = end;
    }
  }
  std::fclose(maps);
  return top;
}

// When an exception's handler was found, uw_install_context overwrites the registers that its
// callers had saved, so for some instructions no unwinder can know the caller.
bool is_in_libgcc(AddressSpace& space, uint64_t pc) {
  const Mapping* mapping = space.find(pc);
  return mapping != nullptr && mapping->path.find("/libgcc_s.so") != std::string::npos;
}

TEST(SingleStep, EveryInstructionUnwindsAsLibdwflDoes) {
  const pid_t child = fork();
  if (child == 0) child_main();
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSTOPPED(status));

  FileCache files;
  auto space = AddressSpace::open({static_cast<uint32_t>(child), 0}, files);
  ASSERT_TRUE(space.has_value());
  Unwinder unwinder(*space);
  DwflReference reference(child);
  const uint64_t top = end_of_stack(child);
  ASSERT_NE(top, 0u);

  int checked = 0;
  int unfinished_reference = 0;
  int rewritten = 0;
  std::vector<uint64_t> outermost;  // main and what called it: the same at every step
  std::map<StackEnd, int> ends;
  std::map<uint64_t, int> not_whole;  // by leaf pc
  int steps = 0;
  int signal_number = 0;
  for (; steps < kMaxSteps; ++steps) {
    ASSERT_EQ(ptrace(PTRACE_SINGLESTEP, child, nullptr, signal_number), 0);
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (WIFEXITED(status)) break;
    ASSERT_TRUE(WIFSTOPPED(status));
    signal_number = WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
    // Every instruction at first, then a share: the dynamic linker's loops are long.
    if (steps > 4000 && steps % 17 != 0) continue;
    const Sample sample = read_sample(child, top);
    const RawStack ours = unwinder.unwind(sample.view());
    ++checked;
    ++ends[ours.end];
    if (outermost.empty()) outermost.assign(ours.pcs.end() - kOuterFrames, ours.pcs.end());
    const bool is_whole = ours.end == StackEnd::kWhole && ours.pcs.size() >= outermost.size() &&
                          std::equal(outermost.rbegin(), outermost.rend(), ours.pcs.rbegin());
    if (!is_whole && is_in_libgcc(**space, sample.regs[16])) {
      ++rewritten;
      continue;
    }
    if (ours.end != StackEnd::kWhole) {
      ++not_whole[sample.regs[16]];
      continue;
    }
    ASSERT_TRUE(is_whole) << "at step " << steps << ", pc " << std::hex << sample.regs[16]
                          << ", end " << int(ours.end);
    // libdwfl loses rbx where a function has not saved it yet (see cfi_table.cc) and then stops.
    const std::vector<uint64_t> theirs = reference.unwind(sample);
    if (theirs.empty() || theirs.back() != ours.pcs.back()) {
      ++unfinished_reference;
      continue;
    }
    ASSERT_EQ(ours.pcs, theirs) << "at step " << steps << ", pc " << std::hex << sample.regs[16]
                                << ", end " << int(ours.end);
  }
  EXPECT_TRUE(WIFEXITED(status)) << "after " << steps << " steps";
  if (!WIFEXITED(status)) kill(child, SIGKILL);
  EXPECT_GT(checked, 4000);
  EXPECT_LT(rewritten, checked / 500);
  EXPECT_LT(unfinished_reference, checked / 50);
  for (const auto& [pc, count] : not_whole) {
    const Mapping* m = (*space)->find(pc);
    ADD_FAILURE() << std::hex << pc << " in " << (m ? m->path : "?") << " at "
                  << (m ? pc - m->bias : 0) << ": not whole, " << std::dec << count << " times";
  }
}

}  // namespace
}  // namespace gpuprof::unwind

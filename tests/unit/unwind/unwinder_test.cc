// SPDX-License-Identifier: Apache-2.0
// The unwinder on real stacks of this process, frame by frame against libdwfl.
#include "daemon/unwind/unwinder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <random>
#include <stdexcept>
#include <thread>

#include "daemon/unwind/address_space.h"
#include "daemon/unwind/file_cache.h"
#include "tests/unit/unwind/capture.h"
#include "tests/unit/unwind/dwfl_reference.h"

extern "C" {
void chain_a(int depth, void (*leaf)(void*), void* arg);
}

namespace gpuprof::unwind {
namespace {

using test::DwflReference;
using test::Sample;

constexpr uint64_t kAll = 1 << 20;

void capture_leaf(void* sample) { test::gpuprof_test_capture(static_cast<Sample*>(sample), kAll); }

class UnwinderTest : public testing::Test {
 protected:
  UnwinderTest() {
    auto space = AddressSpace::open({static_cast<uint32_t>(getpid()), 0}, files_);
    EXPECT_TRUE(space.has_value());
    space_ = *space;
  }
  RawStack unwind(const Sample& sample) { return Unwinder(space_).unwind(sample.view()); }
  void expect_same_as_dwfl(const Sample& sample, size_t at_least) {
    const RawStack ours = unwind(sample);
    DwflReference reference(getpid());
    EXPECT_EQ(ours.pcs, reference.unwind(sample));
    EXPECT_EQ(ours.end, StackEnd::kWhole);
    EXPECT_GE(ours.pcs.size(), at_least);
  }

  FileCache files_;
  std::shared_ptr<AddressSpace> space_;
};

TEST_F(UnwinderTest, DeepChainThroughThreeLibrariesWithoutFramePointers) {
  Sample sample;
  chain_a(40, capture_leaf, &sample);
  expect_same_as_dwfl(sample, 45);
}

TEST_F(UnwinderTest, ThreadEndsAtItsStart) {
  Sample sample;
  std::thread([&] { chain_a(10, capture_leaf, &sample); }).join();
  expect_same_as_dwfl(sample, 14);
}

TEST_F(UnwinderTest, QsortCallback) {
  static Sample sample;
  int values[] = {3, 1, 2};
  std::qsort(values, 3, sizeof values[0], [](const void* a, const void* b) {
    if (sample.bytes.empty()) capture_leaf(&sample);
    return *static_cast<const int*>(a) - *static_cast<const int*>(b);
  });
  expect_same_as_dwfl(sample, 6);
}

TEST_F(UnwinderTest, CatchHandlerAndDestructorDuringUnwinding) {
  Sample in_destructor;
  Sample in_handler;
  struct OnExit {
    Sample& sample;
    ~OnExit() { capture_leaf(&sample); }
  };
  try {
    OnExit guard{in_destructor};
    chain_a(
        3, [](void*) { throw std::runtime_error("x"); }, nullptr);
  } catch (const std::runtime_error&) {
    capture_leaf(&in_handler);
  }
  expect_same_as_dwfl(in_destructor, 4);
  expect_same_as_dwfl(in_handler, 4);
}

TEST_F(UnwinderTest, SignalFrameIsExactAboveTheHandler) {
  static Sample sample;
  struct sigaction action = {};
  struct sigaction old = {};
  action.sa_handler = [](int) { capture_leaf(&sample); };
  test::prepare_capture(&sample, kAll);
  sigaction(SIGUSR1, &action, &old);
  chain_a(
      5, [](void*) { raise(SIGUSR1); }, nullptr);
  sigaction(SIGUSR1, &old, nullptr);
  expect_same_as_dwfl(sample, 10);
}

TEST_F(UnwinderTest, AlternateSignalStackIsCut) {
  static Sample sample;
  static char stack[65536];
  stack_t alternate = {};
  alternate.ss_sp = stack;
  alternate.ss_size = sizeof stack;
  sigaltstack(&alternate, nullptr);
  struct sigaction action = {};
  struct sigaction old = {};
  action.sa_flags = SA_ONSTACK;
  action.sa_handler = [](int) {
    char here = 0;
    const auto end = reinterpret_cast<uint64_t>(stack + sizeof stack);
    test::gpuprof_test_capture(&sample, end - reinterpret_cast<uint64_t>(&here) - 512);
  };
  sigaction(SIGUSR1, &action, &old);
  test::prepare_capture(&sample, sizeof stack);
  raise(SIGUSR1);
  sigaction(SIGUSR1, &old, nullptr);
  alternate.ss_flags = SS_DISABLE;
  sigaltstack(&alternate, nullptr);
  const RawStack ours = unwind(sample);
  EXPECT_EQ(ours.end, StackEnd::kCut);
  EXPECT_GE(ours.pcs.size(), 3u);
}

TEST_F(UnwinderTest, CutStackKeepsItsInnerFrames) {
  Sample whole;
  chain_a(40, capture_leaf, &whole);
  const RawStack all = unwind(whole);
  for (const size_t keep : {size_t{8}, size_t{256}, size_t{1024}, size_t{2048}}) {
    Sample cut = whole;
    cut.bytes.resize(keep);
    cut.flags = GPUPROF_STACK_CUT;
    const RawStack part = unwind(cut);
    EXPECT_EQ(part.end, StackEnd::kCut) << keep;
    ASSERT_LT(part.pcs.size(), all.pcs.size());
    EXPECT_TRUE(std::equal(part.pcs.begin(), part.pcs.end(), all.pcs.begin())) << keep;
  }
}

TEST_F(UnwinderTest, NoStackAtAll) {
  Sample sample;
  EXPECT_EQ(unwind(sample).end, StackEnd::kNoStack);
  EXPECT_EQ(Unwinder(space_).unwind(StackSample{}).end, StackEnd::kNoStack);
}

// Hostile input: whatever comes, the walk ends, within the bound, and every pc but the leaf is in
// mapped code.
TEST_F(UnwinderTest, GarbageRegistersAndStackEndWithoutInventedFrames) {
  Sample good;
  chain_a(40, capture_leaf, &good);
  Unwinder unwinder(space_);
  std::mt19937_64 random(1);
  std::vector<int> ends(kStackEndCount);
  for (int round = 0; round < 20000; ++round) {
    Sample bad = good;
    switch (round % 4) {
      case 0:
        for (auto& r : bad.regs) r = random();
        break;
      case 1:
        for (int i = 0; i < 64; ++i) bad.bytes[random() % bad.bytes.size()] = random() & 0xff;
        break;
      case 2:  // words of the stack moved: plausible, wrong, sometimes cyclic
        for (int i = 0; i < 16; ++i) {
          const size_t words = bad.bytes.size() / 8;
          const size_t from = random() % words * 8;
          std::copy_n(&good.bytes[from], 8, &bad.bytes[random() % words * 8]);
        }
        break;
      case 3:
        bad.regs[random() % 17] = random();
        bad.stack_address += random() % 64;
        bad.bytes.resize(random() % bad.bytes.size());
        bad.stack_top = random() % 2 ? 0 : random();
        break;
    }
    const RawStack stack = unwinder.unwind(bad.view());
    ASSERT_NE(stack.end, StackEnd::kInvalid);
    ASSERT_LE(stack.pcs.size(), Unwinder::kMaxFrames);
    for (size_t i = 1; i < stack.pcs.size(); ++i) ASSERT_NE(space_->find(stack.pcs[i]), nullptr);
    ++ends[static_cast<size_t>(stack.end)];
  }
  EXPECT_GT(ends[static_cast<size_t>(StackEnd::kBadFrame)], 0);
  EXPECT_GT(ends[static_cast<size_t>(StackEnd::kNoModule)], 0);
}

__attribute__((noinline)) void compiled(void* arg, void (*leaf)(void*)) {
  leaf(arg);
  asm volatile("");  // no tail call
}

// A function of a JIT compiler: a frame pointer and a call, `leave` tells nothing of its frame.
TEST_F(UnwinderTest, GeneratedCodeIsPassedByItsFramePointerAndCounted) {
  const uint8_t code[] = {0x55,                    // push %rbp
                          0x48, 0x89, 0xe5,        // mov %rsp, %rbp
                          0x48, 0x83, 0xec, 0x40,  // sub $64, %rsp
                          0x48, 0x89, 0xf0,        // mov %rsi, %rax
                          0xff, 0xd0,              // call *%rax
                          0xc9, 0xc3};             // leave; ret
  void* const memory =
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::copy_n(code, sizeof code, static_cast<uint8_t*>(memory));
  ASSERT_TRUE(space_->refresh());
  using Function = void (*)(void*, void (*)(void*));
  Sample sample, without;
  struct Call {
    Function function;
    Sample* sample;
  } call{reinterpret_cast<Function>(memory), &sample};
  const auto call_it = [](void* arg) {
    const Call& to = *static_cast<Call*>(arg);
    to.function(to.sample, capture_leaf);
    asm volatile("");  // no tail call
  };
  chain_a(4, call_it, &call);
  const RawStack stack = unwind(sample);
  EXPECT_EQ(stack.end, StackEnd::kWhole);
  EXPECT_EQ(stack.by_frame_pointer, 1u);
  call = {compiled, &without};
  chain_a(4, call_it, &call);
  const RawStack plain = unwind(without);
  EXPECT_EQ(plain.by_frame_pointer, 0u);
  EXPECT_EQ(stack.pcs.size(), plain.pcs.size());
  munmap(memory, 4096);
}

TEST_F(UnwinderTest, RecursionBeyondTheBoundIsTooDeep) {
  Sample sample;
  chain_a(600, capture_leaf, &sample);
  const RawStack stack = unwind(sample);
  EXPECT_EQ(stack.end, StackEnd::kTooDeep);
  EXPECT_EQ(stack.pcs.size(), Unwinder::kMaxFrames);
}

}  // namespace
}  // namespace gpuprof::unwind

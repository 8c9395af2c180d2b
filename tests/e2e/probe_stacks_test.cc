// SPDX-License-Identifier: Apache-2.0
//
// Launches bring the thread's registers and stack, byte for byte, and leave the thread untouched.
#include <alloca.h>
#include <pthread.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstring>
#include <functional>

#include "tests/e2e/probe_fixture.h"
#include "tests/e2e/probe_site.h"

namespace gpuprof::probe {
namespace {

// TSan's descriptor of a thread lies at the top of its stack and is larger than what is copied.
#ifdef __SANITIZE_THREAD__
constexpr size_t kTopOfThread = 1 << 20;
constexpr uint32_t kCutByTop = GPUPROF_STACK_CUT;
#else
constexpr size_t kTopOfThread = 0;
constexpr uint32_t kCutByTop = 0;
#endif

// Whether the memory at `address` is what was copied. Frames are read whole here, with what a
// sanitizer puts between their variables.
[[gnu::no_sanitize("address", "thread")]] bool same(const uint8_t* copy, uintptr_t address,
                                                    size_t bytes) {
  const auto* memory = reinterpret_cast<const volatile uint8_t*>(address);
  for (size_t i = 0; i < bytes; i++)
    if (copy[i] != memory[i]) return false;
  return true;
}

class ProbeStacks : public ProbeE2e {
 protected:
  bool off(std::string_view feature) const {
    return GetParam().fallbacks.find(feature) != std::string::npos;
  }

  void begin() {
    start();
    attach();
    watch_self();
  }

  // Fires a launch from here, then compares the copy with this thread's stack from this frame up to
  // `end`. Those frames are suspended, so they still hold what they held at the launch.
  [[gnu::noinline]] void fire_and_compare(uintptr_t end) {
    volatile uint64_t pattern[64];
    for (uint64_t i = 0; i < 64; i++) pattern[i] = 0x5151'0000'0000'0000ull + i;
    const gpuprof_launch_v1 launch = sample_launch(++fired_);
    probe_site_fire(GPUPROF_PROBE_LAUNCH, &launch, 1, fired_);
    poll();
    ASSERT_EQ(sink.launches.size(), fired_);
    const SeenLaunch& seen = sink.launches.back();
    ASSERT_TRUE(seen.has_stack);
    const auto frame = reinterpret_cast<uintptr_t>(&pattern[0]);
    ASSERT_LE(seen.stack_address, frame);
    ASSERT_LE(frame - seen.stack_address, 4096u);
    const uintptr_t copied_end = seen.stack_address + seen.bytes.size();
    const uintptr_t until = std::min(end, copied_end);
    // The pattern itself, then the frames above this one.
    EXPECT_TRUE(same(&seen.bytes[frame - seen.stack_address], frame, sizeof(pattern)));
    const auto above = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
    ASSERT_LT(above, until);
    EXPECT_TRUE(same(&seen.bytes[above - seen.stack_address], above, until - above));
    compared_ = until - above;
  }

  // Goes `depth` frames of at least 1 KiB down first, and of hardly more under ASan either.
  [[gnu::noinline, gnu::no_sanitize("address")]] void fire_deep(int depth, uintptr_t end) {
    volatile char frame[1024];
    for (size_t i = 0; i < sizeof(frame); i++) frame[i] = static_cast<char>(depth + i);
    if (depth == 0) {
      fire_and_compare(end);
    } else {
      fire_deep(depth - 1, end);
    }
    ASSERT_EQ(frame[7], static_cast<char>(depth + 7));
  }

  uint32_t fired_ = 0;
  size_t compared_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Modes, ProbeStacks, testing::ValuesIn(all_modes()), mode_name);

// mm->start_stack as /proc shows it: field 28 of stat.
uintptr_t start_stack() {
  FILE* file = std::fopen("/proc/self/stat", "re");
  char text[2048];
  const size_t n = std::fread(text, 1, sizeof(text) - 1, file);
  std::fclose(file);
  text[n] = 0;
  const char* at = std::strrchr(text, ')') + 2;
  for (int field = 3; field < 28; field++) at = std::strchr(at, ' ') + 1;
  return std::strtoull(at, nullptr, 10);
}

void on_thread(void* stack, size_t bytes, const std::function<void()>& body) {
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  if (stack) pthread_attr_setstack(&attr, stack, bytes);
  pthread_t thread;
  const int err = pthread_create(
      &thread, &attr,
      [](void* arg) -> void* {
        (*static_cast<const std::function<void()>*>(arg))();
        return nullptr;
      },
      const_cast<std::function<void()>*>(&body));
  ASSERT_EQ(err, 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attr);
}

TEST_P(ProbeStacks, MainThreadIsExactUpToItsStart) {
  begin();
  fire_and_compare(start_stack());
  ASSERT_FALSE(HasFatalFailure());
  const SeenLaunch& seen = sink.launches[0];
  EXPECT_EQ(seen.flags, GPUPROF_STACK_MAIN_THREAD);
  EXPECT_EQ(seen.stack_top, start_stack());
  EXPECT_EQ(seen.stack_address + seen.bytes.size(), start_stack());
  EXPECT_EQ(seen.process.pid, static_cast<uint32_t>(getpid()));
  EXPECT_EQ(seen.tid, static_cast<uint32_t>(getpid()));
}

TEST_P(ProbeStacks, ThreadIsExact) {
  begin();
  on_thread(nullptr, 0, [&] {
    // Above this frame are glibc's own, thread-local variables and the thread's descriptor: they
    // change while we look.
    volatile uint8_t frame[3000];
    for (size_t i = 0; i < sizeof(frame); i++) frame[i] = static_cast<uint8_t>(i * 7);
    fire_and_compare(reinterpret_cast<uintptr_t>(&frame[sizeof(frame)]));
    EXPECT_GE(compared_, sizeof(frame));
    EXPECT_EQ(sink.launches.at(0).tid, static_cast<uint32_t>(gettid()));
  });
  const SeenLaunch& seen = sink.launches.at(0);
  if (off("find-vma")) {
    EXPECT_EQ(seen.flags, GPUPROF_STACK_NO_BOUND | kCutByTop);
    EXPECT_EQ(seen.stack_top, 0u);
  } else {
    EXPECT_EQ(seen.flags, kCutByTop);
    EXPECT_GT(seen.stack_top, seen.stack_address);
    EXPECT_EQ(seen.bytes.size(), kCutByTop != 0 ? size_t{GPUPROF_STACK_MAX_BYTES}
                                                : seen.stack_top - seen.stack_address);
  }
}

TEST_P(ProbeStacks, EveryDepthUpToTheCapIsExact) {
  begin();
  // Frames of 1 KiB and a bit, so the last ones end just below the cap: every size class.
  for (int depth = 0; depth < 230; depth += depth < 64 ? 3 : 11) {
    fire_deep(depth, start_stack());
    ASSERT_FALSE(HasFatalFailure()) << depth;
    EXPECT_GE(compared_, static_cast<size_t>(depth) * 1024) << depth;
    const SeenLaunch& seen = sink.launches.back();
    EXPECT_EQ(seen.flags, GPUPROF_STACK_MAIN_THREAD) << depth;
    EXPECT_EQ(seen.stack_address + seen.bytes.size(), start_stack()) << depth;
  }
  const ProbeCounters counters = session->counters();
  EXPECT_EQ(counters.stacks_lost, 0u);
  EXPECT_EQ(counters.stacks_cut, 0u);
}

TEST_P(ProbeStacks, DeepThreadIsWhole) {
  begin();
  on_thread(nullptr, 0, [&] {
    volatile uint8_t outermost[64];
    for (size_t i = 0; i < sizeof(outermost); i++) outermost[i] = static_cast<uint8_t>(i);
    fire_deep(195, reinterpret_cast<uintptr_t>(&outermost[sizeof(outermost)]));
    const SeenLaunch& seen = sink.launches.at(0);
    EXPECT_GE(compared_, 195u << 10);
    // All of it, although nothing told where the thread's stack ends.
    EXPECT_GE(seen.stack_address + seen.bytes.size(),
              reinterpret_cast<uintptr_t>(&outermost[sizeof(outermost)]));
    EXPECT_EQ(seen.flags, kCutByTop | (off("find-vma") ? GPUPROF_STACK_NO_BOUND : 0u));
  });
}

#if defined(__x86_64__)
// As glibc 2.42 leaves them: several threads' stacks in one mapping.
TEST_P(ProbeStacks, AThreadsStackEndsAtItsDescriptorNotWithTheMapping) {
  begin();
  constexpr size_t kStack = (256 << 10) + kTopOfThread, kBytes = 8 * kStack;
  auto* memory = static_cast<uint8_t*>(
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  std::memset(memory, 0x5a, kBytes);
  on_thread(memory + kStack, kStack, [&] {
    volatile uint8_t frame[3000];
    for (size_t i = 0; i < sizeof(frame); i++) frame[i] = static_cast<uint8_t>(i * 7);
    fire_and_compare(reinterpret_cast<uintptr_t>(&frame[sizeof(frame)]));
    EXPECT_GE(compared_, sizeof(frame));
  });
  const SeenLaunch& seen = sink.launches.at(0);
  const auto end = reinterpret_cast<uintptr_t>(memory + 2 * kStack);
  EXPECT_LE(seen.stack_address + seen.bytes.size(), end);
  EXPECT_EQ(seen.flags, kCutByTop | (off("find-vma") ? GPUPROF_STACK_NO_BOUND : 0u));
  munmap(memory, kBytes);
}
#endif

// A stack of the program's own making, in the middle of readable memory: without bpf_find_vma
// nothing tells its end, and what is copied blindly stays small.
TEST_P(ProbeStacks, ABlindCopyIsSmall) {
  begin();
  constexpr size_t kBytes = 2 << 20;
  auto* memory = static_cast<uint8_t*>(
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  std::memset(memory, 0x5a, kBytes);
  ucontext_t here;
  ucontext_t there;
  ASSERT_EQ(getcontext(&there), 0);
  there.uc_stack.ss_sp = memory;
  there.uc_stack.ss_size = kBytes / 4;
  there.uc_link = &here;
  makecontext(
      &there,
      +[] {
        const gpuprof_launch_v1 launch = sample_launch(1);
        probe_site_fire(GPUPROF_PROBE_LAUNCH, &launch, 1, 0);
      },
      0);
  // The main thread's descriptor is far from any stack; another thread's may be near.
  ASSERT_EQ(swapcontext(&here, &there), 0);
  poll();
  ASSERT_EQ(sink.launches.size(), 1u);
  const SeenLaunch& seen = sink.launches[0];
  EXPECT_GE(seen.stack_address, reinterpret_cast<uintptr_t>(memory));
  if (off("find-vma")) {
    EXPECT_EQ(seen.flags, GPUPROF_STACK_NO_BOUND);
    EXPECT_EQ(seen.bytes.size(), 64u << 10);
  } else {
    EXPECT_EQ(seen.flags, GPUPROF_STACK_CUT);
    EXPECT_EQ(seen.bytes.size(), GPUPROF_STACK_MAX_BYTES);
  }
  munmap(memory, kBytes);
}

// The largest record and its head fit a ring of twice their size, again and again.
TEST_P(ProbeStacks, TheLargestRecordFitsTheRing) {
  ProbeOptions options;
  options.stacks_ring_bytes = 512 << 10;
  start(options);
  attach();
  watch_self();
  for (int i = 0; i < 5; i++) {
    fire_deep(290, start_stack());
    ASSERT_FALSE(HasFatalFailure());
    EXPECT_EQ(sink.launches.back().bytes.size(), GPUPROF_STACK_MAX_BYTES);
  }
  EXPECT_EQ(session->counters().stacks_lost, 0u);
}

TEST_P(ProbeStacks, DeeperThanTheCapIsMarkedCut) {
  begin();
  fire_deep(290, start_stack());
  ASSERT_FALSE(HasFatalFailure());
  const SeenLaunch& seen = sink.launches[0];
  EXPECT_EQ(seen.bytes.size(), GPUPROF_STACK_MAX_BYTES);
  EXPECT_EQ(seen.flags, GPUPROF_STACK_MAIN_THREAD | GPUPROF_STACK_CUT);
  EXPECT_EQ(session->counters().stacks_cut, 1u);
}

// A local array of 20 KiB of which only the outer end is touched leaves pages that do not exist
// yet.
TEST_P(ProbeStacks, UntouchedPagesInsideTheStack) {
  begin();
  constexpr size_t kBytes = (256 << 10) + kTopOfThread;
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_EQ(madvise(memory, kBytes, MADV_NOHUGEPAGE), 0);
  on_thread(memory, kBytes, [&] {
    auto* hole = static_cast<volatile uint8_t*>(alloca(20 << 10));
    hole[(20 << 10) - 1] = 0x77;
    fire_and_compare(reinterpret_cast<uintptr_t>(hole));
  });
  const SeenLaunch& seen = sink.launches.at(0);
  if (off("find-vma")) {
    EXPECT_EQ(seen.flags, GPUPROF_STACK_NO_BOUND);
    EXPECT_LT(seen.bytes.size(), 20u << 10);
  } else if (off("sleepable")) {
    EXPECT_EQ(seen.flags, GPUPROF_STACK_PARTIAL);
    EXPECT_LT(seen.bytes.size(), 20u << 10);
    EXPECT_EQ(session->counters().stacks_partial, 1u);
  } else {
    EXPECT_EQ(seen.flags, kCutByTop);
    EXPECT_EQ(seen.bytes.size(), kCutByTop != 0 ? size_t{GPUPROF_STACK_MAX_BYTES}
                                                : seen.stack_top - seen.stack_address);
    EXPECT_GE(seen.bytes.size(), 20u << 10);
    EXPECT_EQ(session->counters().bpf[GPUPROF_BPF_FAULTED_IN], 1u);
  }
  munmap(memory, kBytes);
}

#if defined(__x86_64__)
TEST_P(ProbeStacks, RegistersAreInDwarfOrderAndUntouched) {
  begin();
  const uint64_t site = reinterpret_cast<uintptr_t>(probe_site_address(GPUPROF_PROBE_LAUNCH));
  const gpuprof_launch_v1 launch = sample_launch(1);
  // Optimised sites need some hits before they are calls.
  for (uint64_t seq = 0; seq < 1000; seq++) {
    ProbeSiteRegisters r{};
    probe_site_fire_registers(&launch, seq, &r);
    if (seq % 50 == 0) poll();
    ASSERT_EQ(std::memcmp(r.before, r.after, sizeof(r.before)), 0) << seq;
    if (seq != 0 && seq != 999) continue;
    poll();
    ASSERT_EQ(sink.launches.size(), seq + 1);
    const SeenLaunch& seen = sink.launches.back();
    // r: rax rbx rcx rdx rsi rdi rbp rsp r8..; DWARF: rax rdx rcx rbx rsi rdi rbp rsp r8..r15 rip.
    const uint64_t* b = r.before;
    const std::vector<uint64_t> expected = {
        b[0], b[3], b[2],  b[1],  b[4],  b[5],  b[6],  b[7] - 8 /* the call */,
        b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]};
    for (size_t i = 0; i < expected.size(); i++) EXPECT_EQ(seen.regs[i], expected[i]) << i;
    const bool nop5 = session->describe().find("5-byte nop") != std::string::npos;
    EXPECT_EQ(seen.regs[16], site + (nop5 ? 1 : 0)) << seq;
    EXPECT_EQ(seen.stack_address, seen.regs[7]);
    EXPECT_EQ(seen.regs[17], 0u);
  }
}

// The kernel writes below rsp at an optimised site (6.18). What makes that harmless: the function
// that holds the site is the site and a return, so nothing of its own lies there, and its caller,
// which made a call, has nothing there either.
TEST_P(ProbeStacks, NothingOfTheCallerIsLost) {
  begin();
  const uint8_t* site = probe_site_address(GPUPROF_PROBE_LAUNCH);
  const std::vector<uint8_t> code(site, site + 7);
  EXPECT_EQ(code[6], 0xc3) << "something follows the nops: it may use the red zone";
  const gpuprof_launch_v1 launch = sample_launch(1);
  int wrong = 0;
  for (uint64_t seq = 0; seq < 1000; seq++) {
    volatile uint64_t locals[32];
    uint64_t expected = 0;
    for (uint64_t i = 0; i < 32; i++) {
      locals[i] = seq * 31 + i;
      expected += locals[i] * (i + 1);
    }
    probe_site_fire(GPUPROF_PROBE_LAUNCH, &launch, 1, seq);
    uint64_t sum = 0;
    for (uint64_t i = 0; i < 32; i++) sum += locals[i] * (i + 1);
    wrong += sum != expected;
    if (seq % 50 == 0) poll();
  }
  poll();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(sink.launches.size(), 1000u);
  // The mode is what it says: an optimised site has become a call.
  const bool nop5 = session->describe().find("5-byte nop") != std::string::npos;
  EXPECT_EQ(site[1], nop5 ? 0xe8 : 0x0f);
  EXPECT_EQ(site[0], nop5 ? 0x90 : 0xcc);
}
#endif

}  // namespace
}  // namespace gpuprof::probe

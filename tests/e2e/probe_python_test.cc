// SPDX-License-Identifier: Apache-2.0
//
// The walk over a thread's Python frames in eBPF, on memory of our own making: whole, and such as
// no interpreter has, which may cost a launch its Python frames, never its time or its stack.
#include <sys/mman.h>
#include <sys/wait.h>

#include <thread>

#include "tests/e2e/probe_fixture.h"
#include "tests/e2e/probe_site.h"
#include "tests/e2e/python_memory.h"

namespace gpuprof::probe {
namespace {

constexpr size_t kMostFrames =
    size_t{GPUPROF_PYTHON_CHUNK_FRAMES} * size_t{GPUPROF_PYTHON_MAX_CHUNKS};

class ProbePython : public ProbeE2e {
 protected:
  void begin() {
    start();
    attach();
    watch_self();
  }
  void set_python(const gpuprof_python& walk) {
    session->set_python({static_cast<uint32_t>(getpid()), 0}, &walk);
  }
  // A launch of this thread.
  const SeenLaunch& fire() {
    const gpuprof_launch_v1 launch = sample_launch(++fired_);
    probe_site_fire(GPUPROF_PROBE_LAUNCH, &launch, 1, fired_ - 1);
    poll();
    EXPECT_EQ(sink.launches.size(), fired_);
    EXPECT_TRUE(sink.launches.back().has_stack);
    return sink.launches.back();
  }
  static void expect_frames(const SeenLaunch& seen, const PythonMemory& memory, size_t count,
                            uint32_t end) {
    ASSERT_EQ(seen.python.size(), count);
    EXPECT_EQ(seen.python_end, end);
    for (size_t i = 0; i < count; ++i) {
      const PythonMemory::Frame& frame = memory.frames[i % memory.frames.size()];
      EXPECT_EQ(seen.python[i].address, reinterpret_cast<uint64_t>(&frame)) << i;
      EXPECT_EQ(memcmp(seen.python[i].frame_window, &frame, GPUPROF_PYTHON_FRAME_BYTES), 0) << i;
      ASSERT_EQ(seen.python[i].code, reinterpret_cast<uint64_t>(frame.code)) << i;
      EXPECT_EQ(memcmp(seen.python[i].code_window,
                       reinterpret_cast<const char*>(frame.code) + memory.walk().code_window,
                       GPUPROF_PYTHON_CODE_BYTES),
                0)
          << i;
    }
  }

  uint32_t fired_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Modes, ProbePython, testing::ValuesIn(all_modes()), mode_name);

TEST_P(ProbePython, FramesComeWithTheLaunchWhateverTheirNumber) {
  begin();
  for (const size_t levels : {1u, 15u, 16u, 17u, 30u, 100u, 512u}) {
    const PythonMemory memory(levels, 5);
    set_python(memory.walk());
    expect_frames(fire(), memory, levels, GPUPROF_PYTHON_WHOLE);
  }
  session->set_python({static_cast<uint32_t>(getpid()), 0}, nullptr);
  EXPECT_TRUE(fire().python.empty());
}

TEST_P(ProbePython, TheThreadIsFoundInEveryInterpreter) {
  begin();
  PythonMemory memory(3, 2), other(0, 4);
  // The main interpreter first, with other threads; then an empty one; then the thread's.
  other.own.id = other.own.native_id = 12345;
  PythonMemory::Interpreter empty;
  other.interpreter.next = &empty;
  empty.next = &memory.interpreter;
  memory.first = &other.interpreter;
  set_python(memory.walk());
  expect_frames(fire(), memory, 3, GPUPROF_PYTHON_WHOLE);
  std::thread([&] { EXPECT_TRUE(fire().python.empty()) << "a thread without Python"; }).join();
}

// The thread runs code of one interpreter, called from another: the newest comes first.
TEST_P(ProbePython, FramesOfEveryInterpreterComeWhereTheyAreWanted) {
  begin();
  PythonMemory inner(18), suspended(0, 3), outer(4, 2);
  inner.interpreter.next = &suspended.interpreter;
  suspended.interpreter.next = &outer.interpreter;
  gpuprof_python walk = inner.walk();
  set_python(walk);
  expect_frames(fire(), inner, 18, GPUPROF_PYTHON_WHOLE);
  walk.every_interpreter = 1;
  set_python(walk);
  const SeenLaunch& seen = fire();
  ASSERT_EQ(seen.python.size(), 22u);
  EXPECT_EQ(seen.python_end, GPUPROF_PYTHON_WHOLE);
  EXPECT_EQ(seen.python[17].address, reinterpret_cast<uint64_t>(&inner.frames[17]));
  EXPECT_EQ(seen.python[18].address, reinterpret_cast<uint64_t>(&outer.frames[0]));
  // All that there are, in a circle.
  outer.interpreter.next = &inner.interpreter;
  EXPECT_LE(fire().python.size(), kMostFrames);
}

TEST_P(ProbePython, ACircleOfFramesEnds) {
  begin();
  PythonMemory memory(7);
  memory.frames.back().previous = &memory.frames.front();
  set_python(memory.walk());
  expect_frames(fire(), memory, kMostFrames, GPUPROF_PYTHON_MORE);
}

TEST_P(ProbePython, ACircleOfThreadsOrInterpretersEnds) {
  begin();
  PythonMemory memory(3, 2);
  memory.own.id = memory.own.native_id = 12345;
  memory.own.next = memory.threads.front().get();
  set_python(memory.walk());
  EXPECT_TRUE(fire().python.empty());
  memory.interpreter.threads = nullptr;
  memory.interpreter.next = &memory.interpreter;
  EXPECT_TRUE(fire().python.empty());
}

TEST_P(ProbePython, WildPointersEndTheWalk) {
  begin();
  PythonMemory memory(20);
  set_python(memory.walk());
  const auto wild = {uint64_t{0x10}, uint64_t{1} << 46, uint64_t{0xffff'8880'0000'0000},
                     UINT64_MAX - 7, UINT64_MAX / 2};
  for (const uint64_t address : wild) {
    memory.frames[17].previous = reinterpret_cast<const PythonMemory::Frame*>(address);
    expect_frames(fire(), memory, 18, GPUPROF_PYTHON_FAULT);
  }
  memory.frames[17].previous = &memory.frames[18];
  for (const uint64_t address : wild) {
    memory.frames[5].code = reinterpret_cast<const PythonMemory::Code*>(address);
    const SeenLaunch& seen = fire();
    ASSERT_EQ(seen.python.size(), 20u);
    EXPECT_EQ(seen.python[5].code, 0u);
    EXPECT_NE(seen.python[6].code, 0u);
  }
  for (const uint64_t address : wild) {
    memory.own.frame = reinterpret_cast<const PythonMemory::Frame*>(address);
    EXPECT_TRUE(fire().python.empty());
    memory.interpreter.threads = reinterpret_cast<const PythonMemory::Thread*>(address);
    EXPECT_TRUE(fire().python.empty());
    memory.first = reinterpret_cast<const PythonMemory::Interpreter*>(address);
    EXPECT_TRUE(fire().python.empty());
    memory.first = &memory.interpreter;
    memory.interpreter.threads = &memory.own;
  }
  EXPECT_TRUE(sink.lost.empty());
}

TEST_P(ProbePython, OffsetsThatAreWildReadNothingElse) {
  begin();
  const PythonMemory memory(20);
  gpuprof_python walk = memory.walk();
  for (uint32_t* field :
       {&walk.interpreter_next, &walk.interpreter_threads, &walk.thread_next, &walk.thread_id,
        &walk.thread_native_id, &walk.thread_frame, &walk.frame_indirect, &walk.frame_window,
        &walk.code_window, &walk.window_code, &walk.window_previous}) {
    const uint32_t good = std::exchange(*field, UINT32_MAX);
    set_python(walk);
    fire();
    *field = good;
  }
  set_python(walk);
  expect_frames(fire(), memory, 20, GPUPROF_PYTHON_WHOLE);
}

TEST_P(ProbePython, AForkedChildHasItsParentsInterpreter) {
  begin();
  const PythonMemory memory(20, 3);
  set_python(memory.walk());
  int status = -1;
  const pid_t pid = fork();
  if (pid == 0) {
    const gpuprof_launch_v1 launch = sample_launch(77);
    probe_site_fire(GPUPROF_PROBE_LAUNCH, &launch, 1, 0);
    _exit(0);
  }
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  ASSERT_EQ(status, 0);
  poll();
  ASSERT_EQ(sink.launches.size(), 1u);
  EXPECT_EQ(sink.launches[0].process.pid, static_cast<uint32_t>(pid));
  expect_frames(sink.launches[0], memory, 20, GPUPROF_PYTHON_WHOLE);
}

}  // namespace
}  // namespace gpuprof::probe

// SPDX-License-Identifier: Apache-2.0
#include "daemon/python/layout.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace gpuprof::python {
namespace {

constexpr uint64_t kRuntime = 0x7f0000001000;

void put(std::vector<uint8_t>& bytes, size_t at, uint64_t value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

// The numbers that Debian's 3.13.5 has, at the places of its _Py_DebugOffsets.
std::vector<uint8_t> runtime_313() {
  std::vector<uint8_t> out(kRuntimeBytes);
  std::memcpy(out.data(), "xdebugpy", 8);
  put(out, 8, 0x030d05f0);
  put(out, 40, 632);   // interpreters_head
  put(out, 64, 7264);  // interpreter: next
  put(out, 72, 7344);  // threads_head
  put(out, 168, 8);    // thread: next
  put(out, 184, 72);   // current_frame
  put(out, 192, 152);  // thread_id
  put(out, 200, 160);  // native_thread_id
  put(out, 232, 8);    // frame: previous
  put(out, 240, 0);    // executable
  put(out, 248, 56);   // instr_ptr
  put(out, 264, 70);   // owner
  put(out, 280, 112);  // code: filename
  put(out, 296, 128);  // qualname
  put(out, 304, 136);  // linetable
  put(out, 312, 68);   // firstlineno
  put(out, 344, 200);  // co_code_adaptive
  put(out, 560, 40);   // unicode: asciiobject_size
  return out;
}

TEST(Layout, OfOldVersionsIsKnown) {
  const std::vector<uint8_t> runtime(kRuntimeBytes);
  for (const uint32_t version : {0x309u, 0x30au, 0x30bu, 0x30cu}) {
    const auto layout = layout_of(version, kRuntime, runtime);
    ASSERT_TRUE(layout) << version;
    EXPECT_EQ(layout->version, version);
    // Before 3.12 nothing would tell the order of interpreters' frames.
    EXPECT_EQ(layout->walk.every_interpreter, version >= 0x30c ? 1u : 0u);
    EXPECT_LT(layout->walk.interpreters - kRuntime, 4096u);
    EXPECT_LE(layout->walk.window_previous, GPUPROF_PYTHON_FRAME_BYTES - 8);
    EXPECT_LE(layout->walk.window_code, GPUPROF_PYTHON_FRAME_BYTES - 8);
    EXPECT_LT(layout->window_entry, GPUPROF_PYTHON_FRAME_BYTES);
    EXPECT_LE(layout->window_instruction, GPUPROF_PYTHON_FRAME_BYTES - 4);
    // The window holds what tells one code object from another.
    for (const uint32_t field : {layout->code_filename, layout->code_name, layout->code_lines}) {
      EXPECT_GE(field, layout->walk.code_window);
      EXPECT_LE(field + 8, layout->walk.code_window + GPUPROF_PYTHON_CODE_BYTES);
    }
  }
}

TEST(Layout, Of313IsTheInterpretersOwnWord) {
  const auto layout = layout_of(0x30d, kRuntime, runtime_313());
  ASSERT_TRUE(layout) << layout.error().message;
  EXPECT_EQ(layout->walk.interpreters, kRuntime + 632);
  EXPECT_EQ(layout->walk.interpreter_next, 7264u);
  EXPECT_EQ(layout->walk.interpreter_threads, 7344u);
  EXPECT_EQ(layout->walk.thread_frame, 72u);
  EXPECT_EQ(layout->walk.frame_indirect, 0u);
  EXPECT_EQ(layout->window_entry, 70u);
  EXPECT_EQ(layout->code_name, 128u);
  EXPECT_EQ(layout->code_instructions, 200u);
  EXPECT_EQ(layout->entry, EntryRule::kOwner);
  EXPECT_EQ(layout->walk.every_interpreter, 1u);
}

TEST(Layout, WhatCannotBeIsRefused) {
  const auto refused = [](uint32_t version, const std::vector<uint8_t>& runtime,
                          std::string_view why) {
    const auto layout = layout_of(version, kRuntime, runtime);
    ASSERT_FALSE(layout) << why;
    EXPECT_NE(layout.error().message.find(why), std::string::npos) << layout.error().message;
  };
  refused(0x30f, runtime_313(), "Python 3.15 is not known");
  refused(0x308, runtime_313(), "Python 3.8 is not known");
  refused(0x30d, std::vector<uint8_t>(16), "cannot be read");
  refused(0x30d, std::vector<uint8_t>(kRuntimeBytes), "does not begin with debug offsets");
  std::vector<uint8_t> runtime = runtime_313();
  put(runtime, 16, 1);
  refused(0x30d, runtime, "free-threaded");
  // Every number in turn is one that would read far away, or beyond the window.
  for (const size_t at :
       {40, 64, 72, 168, 184, 192, 200, 232, 240, 248, 264, 280, 296, 304, 312, 344, 560}) {
    runtime = runtime_313();
    put(runtime, at, uint64_t{1} << 40);
    refused(0x30d, runtime, "cannot be");
  }
  runtime = runtime_313();
  put(runtime, 344, 100);
  refused(0x30d, runtime, "cannot be");
}

}  // namespace
}  // namespace gpuprof::python

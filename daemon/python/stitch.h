// SPDX-License-Identifier: Apache-2.0
//
// stitch: Python frames into their places in a native stack.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "daemon/python/layout.h"

namespace gpuprof::python {

// The Python frames between two entries of the interpreter from C, as indices into the copied
// frames: [begin, end), innermost first.
struct FrameRun {
  size_t begin = 0;
  size_t end = 0;
  uint64_t entry = 0;  // kOwner: address of the entry frame, a variable of the native frame
};

// The runs of a thread, innermost first: one for each native frame of _PyEval_EvalFrameDefault.
// From 3.12 on the frames may be those of several interpreters, one after the other.
std::vector<FrameRun> runs_of(const Layout& layout, std::span<const gpuprof_python_frame> frames);

// What a native frame is to the interpreter.
enum class Native : uint8_t {
  kOther,
  kEvaluation,   // runs Python code
  kInterpreter,  // other code of the interpreter's file
  kTrampoline,   // generated, called by nothing but an evaluation's caller: CPython's `-X perf`
};

// One frame of the result: a native one, or a Python one.
struct StitchedFrame {
  bool is_python = false;
  size_t index = 0;  // into the native stack, or into the copied frames
};

// How the two agreed.
enum class StitchEnd : uint8_t {
  kStitched,
  kDisagree,  // not as many runs as native frames: the native stack stands
};

// Every evaluation gives way to its run. The interpreter's own frames between the outermost
// evaluation and what it called last say nothing that the Python frames do not, and go. If the
// native stack is not whole (`native_whole`), the runs that are left come outermost: the thread's
// outer Python frames are known although C frames between them are not.
StitchEnd stitch(std::span<const Native> native, bool native_whole, std::span<const FrameRun> runs,
                 std::vector<StitchedFrame>& out);

}  // namespace gpuprof::python

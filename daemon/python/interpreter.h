// SPDX-License-Identifier: Apache-2.0
//
// Interpreter: the CPython that a process runs, and its frames in the process's stacks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/base/stack_sample.h"
#include "daemon/python/code_objects.h"
#include "daemon/python/evaluation.h"
#include "daemon/python/layout.h"
#include "daemon/python/stitch.h"
#include "daemon/symbolize/symbol.h"
#include "daemon/unwind/stack.h"

namespace gpuprof::unwind {
class AddressSpace;
struct Mapping;
}  // namespace gpuprof::unwind

namespace gpuprof::python {

// What became of the Python frames of the launches that had any. Each launch counts once.
struct PythonCounts {
  uint64_t none = 0;  // the thread runs no Python, or it was not looked for yet
  uint64_t stitched = 0;
  uint64_t disagree = 0;        // not as many entries of the interpreter as native frames of it
  uint64_t incomplete = 0;      // the walk met memory that it could not read, or a bound
  uint64_t beyond_native = 0;   // of the stitched: the native stack ended before the outermost ones
  uint64_t frames = 0;          // of the stitched
  uint64_t unnamed_frames = 0;  // of these: the code object was gone before it was read

  bool operator==(const PythonCounts&) const = default;
};

// CPython 3.9 to 3.14, linked into the program or as a library. Found by its symbols in a mapped
// file; what lies where in it is the Layout's. Threads: one at a time, the address space's.
class Interpreter {
 public:
  // Gives a frame a pc that stands for it in stacks, see Symbolizer::add_frame.
  using AddFrame = std::function<uint64_t(const symbolize::SourceFrame&)>;

  // kNotFound: none is mapped. kUnsupported: one is, and why its frames cannot be read.
  static Result<std::unique_ptr<Interpreter>> find(std::shared_ptr<unwind::AddressSpace> space);

  // For BPF; start_ticks is the caller's to set.
  [[nodiscard]] const gpuprof_python& walk() const { return layout_.walk; }
  [[nodiscard]] uint32_t version() const { return layout_.version; }  // major << 8 | minor

  // Puts the sample's Python frames into `stack`, which it was unwound to. Where they do not agree
  // the stack stays as it is, and `counts` says so.
  void stitch(const StackSample& sample, unwind::RawStack& stack, uint64_t now_ns,
              const AddFrame& add_frame, PythonCounts& counts);

 private:
  struct Symbols;
  Interpreter(std::shared_ptr<unwind::AddressSpace> space, const Layout& layout,
              const Symbols& symbols);
  std::vector<Native> classify(const StackSample& sample, const unwind::RawStack& stack,
                               std::span<const FrameRun> runs);
  uint64_t python_pc(const gpuprof_python_frame& frame, uint64_t now_ns, const AddFrame& add_frame,
                     PythonCounts& counts);

  std::shared_ptr<unwind::AddressSpace> space_;
  Layout layout_;
  const void* file_;  // identifies the interpreter's file among the mappings
  Evaluation evaluation_;
  CodeObjects codes_;
  std::unordered_map<uint64_t, uint64_t> pcs_;  // by code number << 32 | line
  uint64_t unnamed_pc_ = 0;
  std::vector<StitchedFrame> stitched_;
  std::vector<uint64_t> result_;
};

}  // namespace gpuprof::python

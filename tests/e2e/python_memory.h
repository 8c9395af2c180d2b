// SPDX-License-Identifier: Apache-2.0
//
// PythonMemory: what eBPF reads of an interpreter, in this process: its threads, one of them the
// calling one, with frames and code objects laid out as CPython 3.12 has them.
#pragma once

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "proto/ring_abi.h"

namespace gpuprof::probe {

class PythonMemory {
 public:
  struct Code {
    std::array<uint64_t, 32> words = {};
  };
  // f_executable, previous, ..., as many bytes as a frame with some locals.
  struct Frame {
    const Code* code = nullptr;
    const Frame* previous = nullptr;
    std::array<uint64_t, 18> words = {};
  };
  struct Thread {
    const Thread* next = nullptr;
    uint64_t id = 0;
    uint64_t native_id = 0;
    const Frame* frame = nullptr;
    std::array<uint64_t, 60> words = {};
  };
  struct Interpreter {
    const Interpreter* next = nullptr;
    const Thread* threads = nullptr;
    std::array<uint64_t, 1024> words = {};
  };

  // `levels` frames of the calling thread, whose state comes behind those of `others` threads.
  explicit PythonMemory(size_t levels, size_t others = 0) : frames(levels) {
    for (size_t i = 0; i < levels; ++i) {
      codes.push_back(std::make_unique<Code>());
      codes.back()->words[16] = i;
      frames[i].code = codes.back().get();
      frames[i].previous = i + 1 < levels ? &frames[i + 1] : nullptr;
    }
    own.id = pthread_self();
    own.native_id = static_cast<uint64_t>(gettid());
    own.frame = levels == 0 ? nullptr : frames.data();
    const Thread* next = &own;
    for (size_t i = 0; i < others; ++i) {
      threads.push_back(std::make_unique<Thread>());
      threads.back()->next = next;
      threads.back()->id = i + 1;
      threads.back()->native_id = i + 1;
      next = threads.back().get();
    }
    interpreter.threads = next;
    first = &interpreter;
  }
  PythonMemory(const PythonMemory&) = delete;
  PythonMemory& operator=(const PythonMemory&) = delete;

  [[nodiscard]] gpuprof_python walk() const {
    gpuprof_python out = {};
    out.interpreters = reinterpret_cast<uint64_t>(&first);
    out.interpreter_next = offsetof(Interpreter, next);
    out.interpreter_threads = offsetof(Interpreter, threads);
    out.thread_next = offsetof(Thread, next);
    out.thread_id = offsetof(Thread, id);
    out.thread_native_id = offsetof(Thread, native_id);
#if !defined(__x86_64__)
    out.by_native_id = 1;
#endif
    out.thread_frame = offsetof(Thread, frame);
    out.code_window = 68;
    out.window_code = offsetof(Frame, code);
    out.window_previous = offsetof(Frame, previous);
    return out;
  }

  std::vector<Frame> frames;  // innermost first
  std::vector<std::unique_ptr<Code>> codes;
  std::vector<std::unique_ptr<Thread>> threads;
  Thread own;
  Interpreter interpreter;
  const Interpreter* first = nullptr;
};

}  // namespace gpuprof::probe

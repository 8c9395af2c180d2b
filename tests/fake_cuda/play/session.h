// SPDX-License-Identifier: Apache-2.0
// A session: what a process does on the fake driver, as text. README.md documents the format.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace fakecuda {

enum class Verb {
  kLaunch,
  kCooperate,
  kMemcpy,
  kMemset,
  kGraph,
  kCapture,
  kCaptureBegin,
  kCaptureEnd,
  kSleep,
  kLoop,
  kEnd,
  kRate,
  kPath,
  kSet,
  kLoad,
  kUnload,
  kFork,
  kExit,
  kExitNow,
  kKill,
  kTerminate,
  kCancel,
  kDrain,
  kAwaitWindow,
  kStep,
};

struct Op {
  Verb verb{};
  std::string name;     // kernel, graph, module, copy direction, key of `set`
  std::string value;    // of `set`
  uint64_t number = 0;  // count, bytes, ms, status, call path index
  uint64_t count = 1;
  size_t jump = 0;  // kLoop: one past its kEnd; kEnd: its kLoop
  int line = 0;
};

/// Fixed, or uniform between low and high (a generator of its own, seeded: the same every run), or
/// so that `count` launches take `sum_ns` in all.
struct Duration {
  uint64_t low_ns = 5000;
  uint64_t high_ns = 5000;
  uint64_t sum_ns = 0;
  uint64_t count = 0;
};

struct KernelSpec {
  std::string function;  // what cuModuleGetFunction is asked for
  std::string module = "default";
  Duration duration;
  std::string pcs;  // for fake_cuda_pcs; empty: its default
};

struct ModuleSpec {
  std::string file;  // "": synthetic bytes
  uint64_t bytes = 4096;
  bool foreign = false;
  bool later = false;
};

struct GraphSpec {
  std::vector<std::string> nodes;  // kernel names of the session
};

struct ThreadSpec {
  std::string name;
  bool on_main = false;
  int device = 0;
  std::vector<Op> ops;
};

struct Session {
  std::vector<std::pair<std::string, std::string>> settings;  // before cuInit
  std::map<std::string, ModuleSpec> modules;
  std::vector<std::string> module_order;
  std::map<std::string, KernelSpec> kernels;
  std::map<std::string, GraphSpec> graphs;
  std::vector<ThreadSpec> threads;
  std::vector<std::vector<char>> paths;  // letters a..p, root to leaf
  uint64_t seed = 1;
};

/// Reads a session file; `set` are values for its `let` lines. Ends the process with status 2 and
/// the line's number on a mistake.
Session read_session(const char* path, const std::map<std::string, std::string>& set = {});

}  // namespace fakecuda

// SPDX-License-Identifier: Apache-2.0
// Plays a session on whatever libcuda.so.1 the program is linked to.
#pragma once

#include <cuda.h>

#include <atomic>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/fake_cuda/play/session.h"

namespace fakecuda {

struct LoadedKernel {
  CUfunction function = nullptr;  // null: of a module that is loaded later
  KernelSpec spec;
  std::atomic<uint64_t> launched{0};  // of durations that are a sum
};

/// What all threads of a session share. Built before they start, then only read.
struct Stage {
  Session session;
  std::map<std::string, LoadedKernel> kernels;
  std::map<std::string, CUgraphExec> graphs;
  std::map<std::string, std::vector<char>> images;
};

/// cuInit, modules, kernels, graphs. Ends the process when the driver refuses.
Stage* set_stage(const char* path, const std::map<std::string, std::string>& set);

/// Threads end at their next line or launch. For a signal handler.
void stop_playing();

/// One thread of the session. `root` is the function that called: main or session_thread.
class Player {
 public:
  Player(Stage& stage, const ThreadSpec& thread, const char* root);
  void play();

 private:
  void step(const Op& op, size_t& at);
  void below_path(void (*body)(void*), void* argument);
  void launch(const Op& op, CUstream stream);
  void copy(const Op& op);
  void pace();
  void fork_child();
  void load(const Op& op);
  void unload(const std::string& name);
  CUfunction function_of(const Op& op);
  uint64_t duration_of(LoadedKernel& kernel);

  Stage& stage_;
  const ThreadSpec& thread_;
  std::string root_;
  std::mt19937_64 random_;
  CUstream stream_ = nullptr;
  CUstream capture_stream_ = nullptr;
  std::vector<uint64_t> loop_left_;
  std::map<std::string, CUmodule> loaded_;
  std::map<std::string, CUfunction> functions_;  // of kernels of modules in loaded_
  const std::vector<char>* path_ = nullptr;
  std::map<uint64_t, std::string*> labels_;  // kept for ever: the truth holds their addresses
  uint64_t rate_ = 0;
  uint64_t due_ns_ = 0;
};

}  // namespace fakecuda

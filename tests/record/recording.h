// SPDX-License-Identifier: Apache-2.0
// What was recorded of a process, and its text as a session.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace gpuprof::record {

/// One driver call that may have put work on the GPU.
struct Call {
  uint32_t correlation;
  bool cooperative;
};

struct Thread {
  int tid = 0;
  uint64_t first_ns = 0, last_ns = 0;  // CLOCK_MONOTONIC
  std::vector<Call> calls;
};

/// One activity record.
struct Execution {
  uint32_t kind;  // CUpti_ActivityKind
  uint32_t copy_kind;
  uint32_t graph_id;
  uint32_t device;
  uint64_t graph_node;
  uint64_t start_ns, end_ns;
  uint64_t bytes;
  std::string name;  // kernels
};

struct Module {
  uint64_t key;
  std::vector<char> image;
};

/// Samples of an instruction: all, and those of cycles in which nothing was issued.
struct Samples {
  uint64_t all = 0, not_issued = 0;
};

struct Recording {
  std::vector<Thread*> threads;
  std::map<uint32_t, std::vector<Execution>> executions;  // by correlation
  std::vector<Module> modules;                            // in the order of their loading
  // (key of the module, function, offset, reason without its prefix)
  std::map<std::tuple<uint64_t, std::string, uint64_t, std::string>, Samples> samples;
  uint32_t period = 0;  // log2 cycles, 0: PC sampling was off
  uint32_t devices = 1;
  uint64_t invalid = 0;      // records without times
  uint64_t pc_dropped = 0;   // samples that the hardware dropped
  uint64_t pc_failures = 0;  // drains that failed
};

/// Writes DIRECTORY/session and DIRECTORY/module-N.cubin. False: said on stderr.
bool write_session(const Recording& recording, const std::string& directory);

}  // namespace gpuprof::record

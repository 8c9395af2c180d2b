// SPDX-License-Identifier: Apache-2.0
//
// The command line as data. Only what is built is known; anything else is a usage error.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/base/result.h"
#include "proto/memfd_layout.h"

namespace gpuprof::cli {

// cubin resolve, cubin info
struct CubinQuery {
  std::string file;
  std::string function;  // mangled
  std::string pcs;       // parse_pcs()
  bool json = false;
};

struct Options {
  // kPrint: --help or --version
  enum class Action { kAttach, kNode, kRun, kCubinResolve, kCubinInfo, kDoctor, kPrint };
  Action action = Action::kAttach;
  std::string text;  // kPrint

  // kNode
  std::vector<std::string> cgroups;  // directories; none: --all
  std::vector<std::string> exclude;  // Exclusion::parse()

  std::vector<uint32_t> pids;        // kAttach, kDoctor
  std::vector<std::string> command;  // kRun
  std::optional<std::chrono::nanoseconds> duration;
  std::optional<std::chrono::nanoseconds> window;  // one profile each; none: one in all
  std::string output;                              // empty: gpu-<comm>-<pid>-<time>.pb.gz
  std::string summary_json;                        // empty: none
  uint32_t stack_rate = 0;  // a second and thread; 0 default, UINT32_MAX every launch
  gpuprof_tier tier = GPUPROF_TIER_TRACE;  // or the PC sampling that was asked for
  uint32_t pc_period = 0;                  // log2 cycles, 5 to 31; 0 default
  uint32_t pc_duty = 0;                    // serialized: per mille of the time, 1 to 100; 0 default
  uint64_t seed = 0;                       // of the shim's sampler; 0 random
  std::string debug_fallback;              // ProbeOptions::add_fallbacks()

  bool python = true;          // Python's frames
  bool thread_frames = false;  // a root frame for each thread's name

  std::string save_cubins;  // directory; empty: none

  bool yield = false;  // SIGUSR1 gives CUPTI to other clients, SIGUSR2 takes it back

  CubinQuery cubin;

  bool doctor_json = false;  // kDoctor

  // kRun only
  bool force = false;
  std::string user;         // empty: the user that called sudo
  std::string shim;         // empty: GPU_PROFILED_SHIM, else beside the installation
  std::string cuda_compat;  // never, auto or a directory; empty: the machine's default
};

// `argv` as main gets it. kInvalidArgument: a usage error, one line.
Result<Options> parse_options(int argc, const char* const* argv);

}  // namespace gpuprof::cli

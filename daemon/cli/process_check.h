// SPDX-License-Identifier: Apache-2.0
//
// ProcessCheck: what doctor finds out about one process, without touching it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/cli/cupti_copies.h"
#include "daemon/doctor/library_check.h"
#include "daemon/target/cuda_driver.h"
#include "daemon/target/shim_channel.h"

namespace gpuprof::cli {

enum class Verdict {
  kProfiled,  // records of it were seen
  kArmed,     // it is being profiled and has launched nothing since
  kIdle,      // ready
  kBusy,      // another CUPTI client holds the interface
  kFailing,   // CUPTI refuses, and is tried again
  kDeclined,  // the shim cannot work in it
  kInert,     // the shim has shut itself off
  kForked,    // a child that never called exec of a process with the shim: CUDA does not work there
  kBroken,    // the shim should be in it and is not
  kNotInjected,  // it runs CUDA and was started without the shim
  kForeign,      // another tool's library is injected
  kOtherAbi,     // its shim is of another version than this gpu-profiled
  kNotYet,       // it will have the shim with its first CUDA call
  kNoCuda,       // it does not use CUDA
  kUnseen,       // we may not look, or it is gone
};

// "profiled", "broken", …: the words of the table and of --json.
const char* verdict_name(Verdict verdict);
// It can be profiled now.
bool is_ready(Verdict verdict);
// It uses CUDA and cannot be profiled, or that is not known.
bool is_refused(Verdict verdict);

struct ProcessCheck {
  uint32_t pid = 0;
  uint32_t parent = 0;
  std::string comm;
  Verdict verdict = Verdict::kUnseen;
  std::string text;                   // one line without the process's name: why, and what to do
  std::string line;                   // the same with its name
  std::vector<std::string> warnings;  // likewise; they do not keep it from being profiled
  std::string shim;                   // the mapped file, printable; empty: none of its usual name
  doctor::LibraryFault fault = doctor::LibraryFault::kNone;  // kBroken
  std::optional<target::ShimStatus> status;                  // where there is a page
  std::optional<target::ShimChannel::Controller> controller;
  std::vector<std::string> cupti_users;  // tools in it that may hold CUPTI
  target::CudaDriver driver;             // path empty: none is mapped, or it cannot be told
  bool may_come = false;                 // kBroken, and may only not have called cuInit yet
  bool unrecorded = false;               // it is traced, has launched, and no execution came
};

// What the shim's page alone tells. `text`, a whole line, is empty where nothing is wrong.
struct PageVerdict {
  Verdict verdict = Verdict::kUnseen;
  std::string text;
};
PageVerdict judge_page(uint32_t pid, const target::ShimStatus& status);

// `line` without the process's name at its begin.
std::string without_name(uint32_t pid, std::string line);

// kNotFound: no such process.
Result<ProcessCheck> check_process(uint32_t pid, const std::string& kernel_module);

// The process and its descendants, parents first. kNotFound; kNoTarget: `pid` is a thread's.
Result<std::vector<ProcessCheck>> check_tree(uint32_t pid, const std::string& kernel_module);

// Of a process that launches and gives no records for so long.
std::string unrecorded_warning(uint64_t seconds);

// Looks again at those that are `unrecorded`, for `patience_ms` at most, and warns of the ones that
// go on launching without a record.
void recheck_unrecorded(std::vector<ProcessCheck>& processes, uint32_t patience_ms);

}  // namespace gpuprof::cli

// SPDX-License-Identifier: Apache-2.0
//
// Why a process cannot be profiled, in one line that says what to do.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/doctor/library_check.h"
#include "daemon/target/shim_channel.h"

namespace gpuprof::cli {

// What the explanation of a missing shim rests on; apart from its gathering, for the tests.
struct InjectionFacts {
  uint32_t pid = 0;
  bool libcuda_mapped = false;
  std::optional<std::string> injection;      // CUDA_INJECTION64_PATH it was started with
  bool injection_mapped = false;             // a file of that name is mapped
  std::optional<std::string> libcuda_fails;  // why this libcuda cannot work here
  std::string lost;                          // doctor::explain_loss(), where `injection` is not set
  // Where it is set and not mapped, and libcuda is.
  doctor::LibraryCheck library;
  bool gpu_open = false;  // it has a device of a GPU driver open
};

// kPermission, kNotFound: what prevented looking.
Result<InjectionFacts> injection_facts(uint32_t pid);

// Has it mapped libcuda? False where we may not look.
bool uses_cuda(uint32_t pid);

// Why a process has no shim.
enum class NoShim {
  kNoCuda,       // it has not loaded libcuda
  kNotYet,       // likewise, but was started with the variable
  kNotInjected,  // it runs CUDA and was started without the variable
  kForeign,      // another tool's library is injected
  kDriver,       // its libcuda cannot work here
  kBroken,       // the library that the variable names is not there
};
NoShim no_shim_of(const InjectionFacts& facts);

// --pid was given `tid`, a thread of `process`.
Error thread_id_error(uint32_t tid, uint32_t process);

std::string explain_no_shim(const InjectionFacts& facts);

// Looks at `pid` and explains. kNoTarget, or what prevented looking.
Error diagnose_no_shim(uint32_t pid);

// The same for a process and its `children`, none of which has the shim: of one that uses CUDA, if
// any does.
Error diagnose_no_shim(uint32_t pid, const std::vector<uint32_t>& children);

// The shim is mapped, and no memfd of it is to be found.
Error no_status_page(uint32_t pid);

// A process that was stopped (SIGSTOP, a debugger). Nullopt: it runs, or is gone.
std::optional<std::string> explain_stopped(uint32_t pid);

// A shim that is there and cannot trace: declined, inert, busy, failed by CUPTI. kUnavailable: it
// tries again by itself. Nullopt: it can.
std::optional<Error> explain_state(uint32_t pid, const target::ShimStatus& status);

// What to do where RmProfilingAdminOnly is 1, and that it is.
inline constexpr const char* kAdminOnlyRemedy =
    "the driver lets only administrators sample (RmProfilingAdminOnly: 1): load its kernel module "
    "with NVreg_RestrictProfilingToAdminUsers=0, or give the process CAP_SYS_ADMIN";

// PC sampling that was asked for and is refused, in one line with what to change. Nullopt: it is
// not refused. Tracing goes on either way.
std::optional<std::string> explain_pc_sampling(uint32_t pid, const target::ShimStatus& status);

// kPermission naming every capability that profiling needs and we lack.
Status check_capabilities();

}  // namespace gpuprof::cli

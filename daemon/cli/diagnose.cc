// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/diagnose.h"

#include <sys/capability.h>

#include <algorithm>

#include "daemon/cli/environment.h"
#include "daemon/target/cuda_driver.h"
#include "daemon/target/process.h"
#include "daemon/target/text.h"

namespace gpuprof::cli {

Error thread_id_error(uint32_t tid, uint32_t process) {
  return {Code::kNoTarget, 0,
          std::to_string(tid) + " is a thread of process " + std::to_string(process) +
              ", and processes are profiled whole: use --pid " + std::to_string(process)};
}

std::string explain_no_shim(const InjectionFacts& facts) {
  const std::string who = "process " + std::to_string(facts.pid);
  if (!facts.libcuda_mapped) {
    if (facts.injection)
      return who + " has not initialised CUDA yet: attach again after its first CUDA call";
    return who +
           " does not use CUDA (libcuda is not mapped): give the pid of the process that does, "
           "and start it with gpu-profiled run, or with CUDA_INJECTION64_PATH set to the shim";
  }
  if (!facts.injection)
    return who +
           " was started without the shim: restart it with gpu-profiled run -- COMMAND, or with "
           "CUDA_INJECTION64_PATH set to the shim";
  const std::string value = target::printable(*facts.injection);
  if (facts.injection_mapped)
    return who + " was started with another tool's injection (CUDA_INJECTION64_PATH=" + value +
           "): restart it with the variable set to the shim";
  if (facts.libcuda_fails) return who + ": CUDA cannot work in it: " + *facts.libcuda_fails;
  return who + ": broken injection: CUDA_INJECTION64_PATH=" + value +
         " is set and libcuda is loaded, but that library is not: check that the file exists and "
         "is "
         "readable inside the process's container, then restart it";
}

Error diagnose_no_shim(uint32_t pid) {
  InjectionFacts facts;
  facts.pid = pid;
  auto mappings = target::file_mappings(pid);
  if (!mappings) return mappings.error();
  auto injection = target::environment_value(pid, kInjectionVariable);
  if (!injection) return injection.error();
  facts.injection = *injection;
  const std::string wanted =
      facts.injection ? facts.injection->substr(facts.injection->rfind('/') + 1) : std::string();
  for (const target::Mapping& mapping : *mappings) {
    if (mapping.file_name().starts_with("libcuda.so")) facts.libcuda_mapped = true;
    if (!wanted.empty() && mapping.file_name() == wanted) facts.injection_mapped = true;
  }
  if (facts.libcuda_mapped && facts.injection && !facts.injection_mapped) {
    if (auto driver = target::mapped_cuda_driver(pid, target::kernel_module_release()))
      facts.libcuda_fails = target::explain_failure(*driver);
  }
  return Error{Code::kNoTarget, 0, explain_no_shim(facts)};
}

Error diagnose_no_shim(uint32_t pid, const std::vector<uint32_t>& children) {
  auto uses_cuda = [](uint32_t process) {
    const auto mappings = target::file_mappings(process);
    return mappings && std::ranges::any_of(*mappings, [](const target::Mapping& mapping) {
             return mapping.file_name().starts_with("libcuda.so");
           });
  };
  const Error own = diagnose_no_shim(pid);
  if (own.code != Code::kNoTarget || children.empty() || uses_cuda(pid)) return own;
  const auto child = std::ranges::find_if(children, uses_cuda);
  if (child != children.end()) return diagnose_no_shim(*child);
  return {own.code, own.sys_errno,
          own.message + (children.size() == 1 ? "; its child does not, either"
                                              : "; none of its " + std::to_string(children.size()) +
                                                    " children does, either")};
}

std::optional<Error> explain_state(uint32_t pid, const target::ShimStatus& status) {
  const std::string who = "process " + std::to_string(pid);
  const std::string text = status.reason_text.empty() ? "no reason given" : status.reason_text;
  switch (status.state) {
    case GPUPROF_STATE_DECLINED:
      return Error{Code::kNoTarget, 0, who + ": the shim declined: " + text};
    case GPUPROF_STATE_INERT:
      if (status.reason == GPUPROF_REASON_EXITING && status.reason_text.empty())
        return Error{Code::kNoTarget, 0,
                     who +
                         " ended without launching GPU work while it was observed: attach while "
                         "it uses the GPU, or start it with gpu-profiled run -- COMMAND"};
      if (status.reason == GPUPROF_REASON_EXITING)
        return Error{Code::kNoTarget, 0, who + " ended, and could not be traced before: " + text};
      return Error{Code::kNoTarget, 0, who + ": the shim has shut itself off: " + text};
    case GPUPROF_STATE_BUSY:
      return Error{Code::kUnavailable, 0,
                   who +
                       ": another CUPTI client (torch.profiler, nsys, ncu, …) holds the profiling "
                       "interface: " +
                       text + "; end that one first"};
    case GPUPROF_STATE_INVALID:
    case GPUPROF_STATE_COUNT:
      return Error{Code::kNoTarget, 0,
                   who +
                       ": the shim's state could not be read: the process ended first, or its shim "
                       "is of another version than this gpu-profiled"};
    case GPUPROF_STATE_IDLE:
      // It tries again, less and less often.
      if (status.reason == GPUPROF_REASON_SUBSCRIBE_FAILED ||
          status.reason == GPUPROF_REASON_ENABLE_FAILED)
        return Error{Code::kUnavailable, 0, who + ": CUPTI cannot trace in it: " + text};
      return {};
    default:
      return {};
  }
}

std::optional<std::string> explain_pc_sampling(uint32_t pid, const target::ShimStatus& status) {
  const target::PcStatus& pc = status.pc;
  if (pc.state != GPUPROF_PC_REFUSED) return {};
  std::string why = pc.reason_text;
  if (why.empty() && pc.reason == GPUPROF_PC_REASON_PRIVILEGE)
    why =
        "the driver lets only administrators sample (RmProfilingAdminOnly: 1): load its kernel "
        "module with NVreg_RestrictProfilingToAdminUsers=0, or give the process CAP_SYS_ADMIN";
  if (why.empty()) why = "no reason given";
  return "process " + std::to_string(pid) + ": no PC sampling (" +
         target::pc_reason_name(pc.reason) + "): " + why +
         (status.state == GPUPROF_STATE_INERT && status.reason == GPUPROF_REASON_QUIRK
              ? "; tracing ended with it"
              : "; tracing goes on");
}

Status check_capabilities() {
  const cap_t caps = ::cap_get_proc();
  if (caps == nullptr) return {};  // then the kernel says what it misses
  auto has = [&](cap_value_t cap) {
    cap_flag_value_t value = CAP_CLEAR;
    return ::cap_get_flag(caps, cap, CAP_EFFECTIVE, &value) == 0 && value == CAP_SET;
  };
  const bool admin = has(CAP_SYS_ADMIN);
  std::string missing;
  auto need = [&](bool ok, const char* name) {
    if (!ok) missing += (missing.empty() ? "" : ", ") + std::string(name);
  };
  need(admin || has(CAP_BPF), "CAP_BPF");
  need(admin || has(CAP_PERFMON), "CAP_PERFMON");
  need(has(CAP_SYS_PTRACE), "CAP_SYS_PTRACE");
  need(has(CAP_DAC_READ_SEARCH) || has(CAP_DAC_OVERRIDE), "CAP_DAC_READ_SEARCH");
  ::cap_free(caps);
  if (missing.empty()) return {};
  return fail(Code::kPermission,
              "missing " + missing +
                  ": run gpu-profiled with sudo (in a container: --cap-add, or --privileged)");
}

}  // namespace gpuprof::cli

// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/diagnose.h"

#include <dirent.h>
#include <sys/capability.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "daemon/cli/environment.h"
#include "daemon/doctor/lost_variable.h"
#include "daemon/target/cuda_driver.h"
#include "daemon/target/process.h"
#include "daemon/target/text.h"

namespace gpuprof::cli {

namespace {

bool is_libcuda(const target::Mapping& mapping) {
  return mapping.file_name().starts_with("libcuda.so");
}

// A device that cuInit opens: of the NVIDIA driver, of Tegra's, of WSL's.
bool has_gpu_open(uint32_t pid) {
  struct CloseDir {
    void operator()(DIR* dir) const { ::closedir(dir); }
  };
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd/";
  const std::unique_ptr<DIR, CloseDir> dir(::opendir(folder.c_str()));
  while (const dirent* entry = dir ? ::readdir(dir.get()) : nullptr) {
    char link[64] = {};
    if (::readlink((folder + entry->d_name).c_str(), link, sizeof link - 1) <= 0) continue;
    const std::string_view target = link;
    for (const std::string_view device : {"/dev/nvidia", "/dev/nvmap", "/dev/nvhost", "/dev/dxg"}) {
      if (target.starts_with(device)) return true;
    }
  }
  return false;
}

std::string explain_broken(const InjectionFacts& facts) {
  const std::string out = "broken injection: " + std::string(kInjectionVariable) + "=" +
                          target::printable(*facts.injection) + ": ";
  if (!facts.library.text.empty()) return out + facts.library.text;
  if (!facts.gpu_open)
    return out +
           "the file is good and no GPU device is open, so it may not have called cuInit yet: look "
           "again after its first CUDA call";
  return out +
         "the file is good as far as can be seen from outside: SELinux or AppArmor may refuse it "
         "(see the audit log); LD_DEBUG=files in the process's environment shows what the loader "
         "does";
}

}  // namespace

Error thread_id_error(uint32_t tid, uint32_t process) {
  return {Code::kNoTarget, 0,
          std::to_string(tid) + " is a thread of process " + std::to_string(process) +
              ", and processes are profiled whole: use --pid " + std::to_string(process)};
}

bool uses_cuda(uint32_t pid) {
  const auto mappings = target::file_mappings(pid);
  return mappings && std::ranges::any_of(*mappings, is_libcuda);
}

NoShim no_shim_of(const InjectionFacts& facts) {
  if (!facts.libcuda_mapped) return facts.injection ? NoShim::kNotYet : NoShim::kNoCuda;
  if (!facts.injection) return NoShim::kNotInjected;
  // A library that is mapped and has no entry is nobody's injection.
  if (facts.injection_mapped && facts.library.fault != doctor::LibraryFault::kNoExport)
    return NoShim::kForeign;
  return facts.libcuda_fails ? NoShim::kDriver : NoShim::kBroken;
}

std::string explain_no_shim(const InjectionFacts& facts) {
  const std::string who = "process " + std::to_string(facts.pid);
  switch (no_shim_of(facts)) {
    case NoShim::kNotYet:
      return who + " has not initialised CUDA yet: attach again after its first CUDA call";
    case NoShim::kNoCuda:
      return who +
             " does not use CUDA (libcuda is not mapped): give the pid of the process that does, "
             "and start it with gpu-profiled run, or with CUDA_INJECTION64_PATH set to the shim";
    case NoShim::kNotInjected:
      return who +
             " was started without the shim: restart it with gpu-profiled run -- COMMAND, or with "
             "CUDA_INJECTION64_PATH set to the shim" +
             (facts.lost.empty() ? "" : " (" + facts.lost + ")");
    case NoShim::kForeign:
      return who + " was started with another tool's injection (CUDA_INJECTION64_PATH=" +
             target::printable(*facts.injection) +
             "): restart it with the variable set to the shim";
    case NoShim::kDriver:
      return who + ": CUDA cannot work in it: " + *facts.libcuda_fails;
    case NoShim::kBroken:
      break;
  }
  return who + ": " + explain_broken(facts);
}

Result<InjectionFacts> injection_facts(uint32_t pid) {
  InjectionFacts facts;
  facts.pid = pid;
  auto mappings = target::file_mappings(pid);
  if (!mappings) return tl::unexpected<Error>(mappings.error());
  auto injection = target::environment_value(pid, kInjectionVariable);
  if (!injection) return tl::unexpected<Error>(injection.error());
  facts.injection = *injection;
  const std::string wanted =
      facts.injection ? facts.injection->substr(facts.injection->rfind('/') + 1) : std::string();
  for (const target::Mapping& mapping : *mappings) {
    if (is_libcuda(mapping)) facts.libcuda_mapped = true;
    // A loader that will fail maps the rest of it for a moment.
    if (mapping.executable && !wanted.empty() && mapping.file_name() == wanted)
      facts.injection_mapped = true;
  }
  switch (no_shim_of(facts)) {
    case NoShim::kNotInjected:
      facts.lost =
          doctor::explain_loss(doctor::ancestors(pid, kInjectionVariable), kInjectionVariable);
      break;
    case NoShim::kForeign:
    case NoShim::kBroken: {
      if (auto driver = target::mapped_cuda_driver(pid, target::kernel_module_release()))
        facts.libcuda_fails = target::explain_failure(*driver);
      if (auto process = doctor::loading_process(pid))
        facts.library = doctor::check_library(*process, *facts.injection);
      facts.gpu_open = has_gpu_open(pid);
      break;
    }
    default:
      break;
  }
  return facts;
}

Error no_status_page(uint32_t pid) {
  return {Code::kNoTarget, 0,
          "process " + std::to_string(pid) +
              ": the shim is mapped but has no status page: it declined, and its line on the "
              "process's stderr says why"};
}

std::optional<std::string> explain_stopped(uint32_t pid) {
  const auto stat = target::process_stat(pid);
  if (!stat || (stat->state != 'T' && stat->state != 't')) return {};
  return "process " + std::to_string(pid) +
         " is stopped, so tracing cannot begin: continue it (kill -CONT " + std::to_string(pid) +
         ") and attach again";
}

Error diagnose_no_shim(uint32_t pid) {
  auto facts = injection_facts(pid);
  if (!facts) return facts.error();
  return Error{Code::kNoTarget, 0, explain_no_shim(*facts)};
}

Error diagnose_no_shim(uint32_t pid, const std::vector<uint32_t>& children) {
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
  if (why.empty() && pc.reason == GPUPROF_PC_REASON_PRIVILEGE) why = kAdminOnlyRemedy;
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

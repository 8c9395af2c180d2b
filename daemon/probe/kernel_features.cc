// SPDX-License-Identifier: Apache-2.0
#include "daemon/probe/kernel_features.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/bpf.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <string>

#include "daemon/base/unique_fd.h"

namespace gpuprof::probe {
namespace {

// enum bpf_attach_type of include/uapi/linux/bpf.h since 6.6; not in Debian 12's own headers.
constexpr auto kTraceUprobeMulti = static_cast<bpf_attach_type>(48);

// "return 0" as a uprobe program.
UniqueFd load_empty_program(bool multi, bool sleepable) {
  std::array<bpf_insn, 2> code{};
  code[0].code = BPF_ALU64 | BPF_MOV | BPF_K;
  code[1].code = BPF_JMP | BPF_EXIT;
  LIBBPF_OPTS(bpf_prog_load_opts, options);
  if (multi) options.expected_attach_type = kTraceUprobeMulti;
  if (sleepable) options.prog_flags = BPF_F_SLEEPABLE;
  return UniqueFd(
      bpf_prog_load(BPF_PROG_TYPE_KPROBE, nullptr, "GPL", code.data(), code.size(), &options));
}

// Attaching to a directory: kernels that know the link type refuse it as "bad file" (EBADF), others
// refuse the type (EINVAL).
bool has_uprobe_multi() {
  const UniqueFd program = load_empty_program(true, false);
  if (!program.valid()) return false;
  const unsigned long offset = 0;
  LIBBPF_OPTS(bpf_link_create_opts, options);
  options.uprobe_multi.path = "/";
  options.uprobe_multi.offsets = &offset;
  options.uprobe_multi.cnt = 1;
  const UniqueFd link(bpf_link_create(program.get(), -1, kTraceUprobeMulti, &options));
  return !link.valid() && errno == EBADF;
}

// The call that an optimised site makes is a system call of its own (336), which answers ENXIO to
// everybody else; arch/x86/kernel/uprobes.c since 6.18.
bool has_optimised_nop5() {
#if defined(__x86_64__)
  constexpr long kUprobeCall = 336;
  return syscall(kUprobeCall) == -1 && errno == ENXIO;
#else
  return false;
#endif
}

bool has_helper(bpf_func_id helper) {
  return libbpf_probe_bpf_helper(BPF_PROG_TYPE_KPROBE, helper, nullptr) == 1;
}

bool is_locked_down() {
  std::ifstream file("/sys/kernel/security/lockdown");
  std::string line;
  return std::getline(file, line) && line.find("[confidentiality]") != std::string::npos;
}

}  // namespace

bool has_capability(int capability) {
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> data{};
  if (syscall(SYS_capget, &header, data.data()) != 0) return false;
  return (data[static_cast<size_t>(capability) / 32].effective >> (capability % 32)) & 1u;
}

BpfAccess probe_bpf_access() {
  const bool admin = has_capability(CAP_SYS_ADMIN);
  BpfAccess access;
  access.cap_bpf = admin || has_capability(CAP_BPF);
  access.cap_perfmon = admin || has_capability(CAP_PERFMON);
  access.locked_down = is_locked_down();
  access.btf_errno = ::access("/sys/kernel/btf/vmlinux", R_OK) == 0 ? 0 : errno;
  access.program_errno = load_empty_program(false, false).valid() ? 0 : errno;
  access.attach_cookies = access.program_errno == 0 && has_helper(BPF_FUNC_get_attach_cookie);
  return access;
}

Status explain(const BpfAccess& access) {
  std::string missing;
  if (!access.cap_bpf) missing = "CAP_BPF";
  if (!access.cap_perfmon) missing += missing.empty() ? "CAP_PERFMON" : " and CAP_PERFMON";
  if (!missing.empty()) {
    return fail(Code::kPermission, "loading eBPF programs needs " + missing +
                                       ": run with sudo, or give the file its capabilities with "
                                       "setcap cap_bpf,cap_perfmon+ep");
  }
  if (access.locked_down) {
    return fail(Code::kPermission,
                "the kernel is locked down (confidentiality), which forbids eBPF to read memory: "
                "boot with lockdown=integrity or none");
  }
  if (access.btf_errno != 0) {
    return fail_errno(Code::kUnsupported, access.btf_errno,
                      "no kernel type information at /sys/kernel/btf/vmlinux (needs a kernel with "
                      "CONFIG_DEBUG_INFO_BTF and /sys mounted)");
  }
  if (access.program_errno != 0) {
    const int err = access.program_errno;
    return fail_errno(
        err == EPERM ? Code::kPermission : Code::kUnsupported, err,
        "the kernel refuses eBPF uprobe programs (seccomp, or no CONFIG_BPF_EVENTS?)");
  }
  if (!access.attach_cookies) {
    return fail(Code::kUnsupported, "kernel too old: eBPF attach cookies need Linux 5.15 or newer");
  }
  return {};
}

KernelFeatures probe_kernel_features() {
  return {
      .uprobe_multi = has_uprobe_multi(),
      .sleepable = load_empty_program(false, true).valid(),
      .nop5 = has_optimised_nop5(),
      .find_vma = has_helper(BPF_FUNC_find_vma),
  };
}

}  // namespace gpuprof::probe

// SPDX-License-Identifier: Apache-2.0
//
// What the running kernel can do, found by trying it: distributions backport, so versions lie.
#pragma once

#include "daemon/base/result.h"

namespace gpuprof::probe {

struct KernelFeatures {
  bool uprobe_multi = false;  // one link for many sites, with cookies and semaphores (6.6)
  bool sleepable = false;     // uprobe programs that may fault pages in (6.0)
  bool nop5 = false;          // a uprobe on a 5-byte nop becomes a call (6.18, x86-64)
  bool find_vma = false;      // bpf_find_vma (5.17)
};

// Tries each feature with a program of two instructions. Needs the capabilities of
// explain(probe_bpf_access()).
KernelFeatures probe_kernel_features();

// What loading any program depends on, as found; as constructed, nothing stands in the way.
struct BpfAccess {
  bool cap_bpf = true;  // or CAP_SYS_ADMIN, which holds both
  bool cap_perfmon = true;
  bool locked_down = false;    // to confidentiality
  int btf_errno = 0;           // of reading /sys/kernel/btf/vmlinux
  int program_errno = 0;       // of loading a program of two instructions
  bool attach_cookies = true;  // since 5.15
};

BpfAccess probe_bpf_access();

// Names whatever stands in the way, and what to do about it.
Status explain(const BpfAccess& access);

// True if the calling thread has the capability in its effective set.
bool has_capability(int capability);

}  // namespace gpuprof::probe

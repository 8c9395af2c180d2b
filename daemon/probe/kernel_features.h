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
// check_bpf_access.
KernelFeatures probe_kernel_features();

// Names whatever stands in the way of loading any program: a capability, BTF, lockdown, a kernel
// without attach cookies (before 5.15).
Status check_bpf_access();

// True if the calling thread has the capability in its effective set.
bool has_capability(int capability);

}  // namespace gpuprof::probe

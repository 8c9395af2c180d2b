// SPDX-License-Identifier: Apache-2.0
//
// The capabilities that this process keeps once its probes are attached.
#pragma once

#include <sys/capability.h>

#include <span>

#include "daemon/base/result.h"

namespace gpuprof::cli {

// Keeps those of `kept` that are permitted now as effective and permitted, and nothing inheritable,
// ambient or in the bounding set; no_new_privs, so that no exec brings any back. For a process of
// one thread: the kernel keeps capabilities by thread. kPermission: the kernel refused.
Status keep_capabilities(std::span<const cap_value_t> kept);

// What reading hostile processes takes for the rest of the run: CAP_BPF, CAP_PERFMON,
// CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH, CAP_CHECKPOINT_RESTORE, CAP_SYSLOG. CAP_SYS_ADMIN stays
// where `perf_uprobes` (a kernel without uprobe_multi attaches by it) or where it was granted in
// the place of CAP_BPF or CAP_PERFMON. Returns whether it stays.
Result<bool> drop_capabilities(bool perf_uprobes);

}  // namespace gpuprof::cli

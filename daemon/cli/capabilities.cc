// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/capabilities.h"

#include <sys/prctl.h>

#include <cerrno>
#include <memory>
#include <vector>

namespace gpuprof::cli {
namespace {

struct FreeCaps {
  void operator()(cap_t caps) const { ::cap_free(caps); }
};
using Caps = std::unique_ptr<std::remove_pointer_t<cap_t>, FreeCaps>;

bool permits(const Caps& caps, cap_value_t cap) {
  cap_flag_value_t value = CAP_CLEAR;
  return ::cap_get_flag(caps.get(), cap, CAP_PERMITTED, &value) == 0 && value == CAP_SET;
}

}  // namespace

Status keep_capabilities(std::span<const cap_value_t> kept) {
  const Caps before(::cap_get_proc());
  const Caps after(::cap_init());
  if (!before || !after) return fail_errno(Code::kPermission, errno, "cap_get_proc");
  // The bounding set needs CAP_SETPCAP; without it nothing can be gained through it anyway.
  for (int cap = 0; ::prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; ++cap)
    ::prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
  for (const cap_value_t cap : kept) {
    if (!permits(before, cap)) continue;
    ::cap_set_flag(after.get(), CAP_PERMITTED, 1, &cap, CAP_SET);
    ::cap_set_flag(after.get(), CAP_EFFECTIVE, 1, &cap, CAP_SET);
  }
  if (::cap_set_proc(after.get()) != 0) return fail_errno(Code::kPermission, errno, "cap_set_proc");
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
    return fail_errno(Code::kPermission, errno, "PR_SET_NO_NEW_PRIVS");
  return {};
}

Result<bool> drop_capabilities(bool perf_uprobes) {
  const Caps before(::cap_get_proc());
  if (!before) return fail_errno(Code::kPermission, errno, "cap_get_proc");
  std::vector<cap_value_t> kept = {
      CAP_BPF,   CAP_PERFMON, CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH, CAP_CHECKPOINT_RESTORE,
      CAP_SYSLOG};
  const bool admin = permits(before, CAP_SYS_ADMIN) &&
                     (perf_uprobes || !permits(before, CAP_BPF) || !permits(before, CAP_PERFMON));
  if (admin) kept.push_back(CAP_SYS_ADMIN);
  // check_capabilities() takes the stronger one, too.
  if (!permits(before, CAP_DAC_READ_SEARCH)) kept.push_back(CAP_DAC_OVERRIDE);
  if (auto ok = keep_capabilities(kept); !ok) return tl::unexpected<Error>(ok.error());
  return admin;
}

}  // namespace gpuprof::cli

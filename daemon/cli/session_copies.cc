// SPDX-License-Identifier: Apache-2.0
//
// Session: which copies of CUPTI its targets have.
#include "daemon/cli/session.h"

namespace gpuprof::cli {
namespace {

// Looks in all: one reads a process's mappings and may read two files. A flood of short children
// has them like their parent.
constexpr uint32_t kMostLooks = 256;

}  // namespace

void Session::look_for_cupti_copies(Controlled& target) {
  if (target.exited || target.cupti_copies || cupti_looks_ >= kMostLooks) return;
  ++cupti_looks_;
  target.cupti_copies = find_cupti_copies(target.id.pid, target.status);
  if (!target.cupti_copies) return;
  if (cupti_copies_told_.emplace(target.cupti_copies->used, target.cupti_copies->other).second)
    console_.line(explain_cupti_copies(target.id.pid, *target.cupti_copies));
}

}  // namespace gpuprof::cli

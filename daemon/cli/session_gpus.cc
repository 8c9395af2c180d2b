// SPDX-License-Identifier: Apache-2.0
// Session, part two: who may PC-sample which GPU (docs/adr/0020).
#include "daemon/base/clock.h"
#include "daemon/cli/pc_report.h"
#include "daemon/cli/session.h"

namespace gpuprof::cli {
namespace {

// With the shim's own round of 100 ms a GPU that is wanted is granted within 0.3 s.
constexpr uint64_t kSharingNs = 100'000'000;
// A page that could not be read (a stopped process, or a hostile one) must cost the others no time.
constexpr uint64_t kUnreadableNs = 500'000'000;
constexpr uint64_t kTellNs = 1'000'000'000;

}  // namespace

// For `request`, which is about to be written for the first time.
void Session::ask_for_gpus(const target::ShimStatus& status, Controlled& target,
                           target::ControlRequest& request) {
  if (request.tier <= GPUPROF_TIER_TRACE) return;
  if (!status.pc.claims.heeds_grants) {
    request.tier = GPUPROF_TIER_TRACE;
    target.pc.state = GPUPROF_PC_REFUSED;
    target.pc.reason = GPUPROF_PC_REASON_FAILED;
    target.pc.reason_text =
        "its shim is older than this gpu-profiled, and would sample a GPU that another process "
        "samples: restart it with the matching shim";
    console_.line("process " + std::to_string(target.id.pid) +
                  ": no PC sampling: " + target.pc.reason_text + "; tracing goes on");
    return;
  }
  arbiter_.add(target.id, status.pc.claims, monotonic_ns());
  request.pc_grant = *arbiter_.grant_of(target.id);
  next_sharing_ns_ = 0;  // those that were alone until now
}

void Session::give_up_gpus(Controlled& target) {
  if (arbiter_.grant_of(target.id) == nullptr) return;
  target.gpus = arbiter_.remove(target.id, monotonic_ns());
  next_sharing_ns_ = 0;
}

void Session::share_gpus(uint64_t now_ns) {
  if (finishing_ || arbiter_.size() == 0 || now_ns < next_sharing_ns_) return;
  next_sharing_ns_ = now_ns + kSharingNs;
  for (auto& [id, target] : controlled_) {
    if (target.exited || now_ns < target.next_claims_ns || arbiter_.grant_of(id) == nullptr)
      continue;
    if (auto claims = target.channel->read_claims()) {
      arbiter_.update(id, *claims, now_ns);
    } else {
      target.next_claims_ns = now_ns + kUnreadableNs;
    }
  }
  for (const ProcessId& id : arbiter_.settle(now_ns)) {
    Controlled& target = controlled_.at(id);
    lease_written(target, target.channel->grant(*arbiter_.grant_of(id)));
  }
  for (const auto& [id, target] : controlled_) {
    if (!target.exited) tell_taken(target);
  }
}

// One line for each GPU and process that has it, not one for each of a hundred that wait for it.
void Session::tell_taken(const Controlled& target) {
  for (const target::GpuUse& use : arbiter_.uses_of(target.id)) {
    if (use.taken_by == 0 || use.sampled_ns != 0 || use.waited_ns < kTellNs) continue;
    if (taken_told_.emplace(use.gpu, use.taken_by).second)
      console_.line(gpu_line(target.id.pid, use));
  }
}

}  // namespace gpuprof::cli

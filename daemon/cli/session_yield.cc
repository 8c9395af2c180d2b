// SPDX-License-Identifier: Apache-2.0
// Session, part four: CUPTI has one client, and others may want to be that for a while (--yield).
#include <signal.h>

#include "daemon/base/clock.h"
#include "daemon/cli/session.h"

namespace gpuprof::cli {
namespace {

// A process that launches gives CUPTI up within a round of its shim, 250 ms.
constexpr uint64_t kTellDelayNs = 1'500'000'000;

std::string processes(size_t number) {
  return std::to_string(number) + (number == 1 ? " process" : " processes");
}

}  // namespace

bool is_yield_signal(int signal) { return signal == SIGUSR1 || signal == SIGUSR2; }

bool Session::heed(int signal) {
  if (!options_.yield || !is_yield_signal(signal)) return false;
  if (finishing_) return true;
  if (signal == SIGUSR1 && yielded_ns_ == 0) yield();
  if (signal == SIGUSR2 && yielded_ns_ != 0) take_back();
  return true;
}

void Session::yield() {
  yielded_ns_ = monotonic_ns();
  yield_told_ = yield_delay_told_ = false;
  for (auto& [id, target] : controlled_) {
    if (!target.channel || !target.channel->acquired() || target.exited) continue;
    pause(target, yielded_ns_);
  }
}

// Disarms it while the run goes on.
void Session::pause(Controlled& target, uint64_t now_ns) {
  if (auto status = target.channel->read_status()) take_status(target, *status);
  target.care.look_closely(now_ns);
  const Status written = target.channel->set_tier(GPUPROF_TIER_OFF);
  lease_written(target, written);
  if (written) target.gaps.yielded();
}

// Arms it again, unless something else keeps it disarmed.
void Session::resume(Controlled& target, uint64_t now_ns) {
  if (auto status = target.channel->read_status()) take_status(target, *status);
  target.care.look_closely(now_ns);
  target.gaps.taken_back();
  target.asked_ns = now_ns;
  if (target.out_of_scope || yielded_ns_ != 0) return;
  lease_written(target, target.channel->set_tier(target.tier));
}

void Session::take_back() {
  yielded_ns_ = 0;
  const uint64_t now_ns = monotonic_ns();
  for (auto& [id, target] : controlled_) {
    if (!target.channel || !target.channel->acquired() || target.exited) continue;
    if (!target.out_of_scope) target.trouble_told = false;  // another client may hold it now
    resume(target, now_ns);
  }
  console_.line("CUPTI is taken back (SIGUSR2): tracing goes on with the next kernel launch");
}

// That CUPTI is free is what the other client waits for: once all have given it up, or why not.
void Session::tell_yielded(uint64_t now_ns) {
  if (!yield_pending()) return;
  size_t free = 0, kept = 0, late = 0;
  std::string kept_by, late_one;
  for (const auto& [id, target] : controlled_) {
    if (!target.channel || target.exited) continue;
    const target::ShimStatus& status = target.status;
    const std::string who = "process " + std::to_string(id.pid);
    if (status.eager || status.reason == GPUPROF_REASON_QUIRK) {
      ++kept;
      if (kept_by.empty())
        kept_by =
            who + (status.eager ? " has GPU_PROFILED_SUBSCRIBE=eager" : ": " + status.reason_text);
    } else if (status.state == GPUPROF_STATE_TRACING || status.state == GPUPROF_STATE_TRACING_PC ||
               status.state == GPUPROF_STATE_ARMING || status.state == GPUPROF_STATE_DISARMING) {
      ++late;
      if (late_one.empty()) late_one = who;
    } else {
      ++free;
    }
  }
  if (late != 0) {
    if (now_ns - yielded_ns_ < kTellDelayNs || yield_delay_told_) return;
    yield_delay_told_ = true;
    console_.line(processes(late) + " (" + late_one + (late == 1 ? "" : ", …") +
                  ") will give CUPTI up with the next kernel launch");
    return;
  }
  yield_told_ = true;
  if (kept != 0) console_.line("CUPTI is kept in " + processes(kept) + ": " + kept_by);
  console_.line("CUPTI is yielded (SIGUSR1): other clients can subscribe in " + processes(free) +
                "; SIGUSR2 takes it back");
}

}  // namespace gpuprof::cli

// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/trace_gaps.h"

#include <algorithm>
#include <chrono>

#include "daemon/cli/duration.h"

namespace gpuprof::cli {
namespace {

// Faster than this no shim stops and begins again: its service thread takes a round for each.
constexpr uint64_t kLeastCycleNs = 1'000'000;

// How long nothing has been recorded, as of its last heartbeat. Both times are of the target's own
// clock, which in a time namespace is not ours.
uint64_t open_ns(const target::ShimStatus& status) {
  if (status.off_since_ns == 0 || status.heartbeat_ns <= status.off_since_ns) return 0;
  return status.heartbeat_ns - status.off_since_ns;
}

}  // namespace

const char* cause_name(TraceGaps::Cause cause) {
  switch (cause) {
    case TraceGaps::Cause::kNone:
      return "none";
    case TraceGaps::Cause::kYielded:
      return "yielded";
    case TraceGaps::Cause::kStalled:
      return "stalled";
    case TraceGaps::Cause::kUnwritable:
      return "unwritable";
    case TraceGaps::Cause::kOverwritten:
      return "overwritten";
    case TraceGaps::Cause::kEnded:
      return "ended";
  }
  return "none";
}

void TraceGaps::begin(const target::ShimStatus& status, bool was_running, uint64_t since_ns,
                      uint64_t now_ns) {
  begun_ = true;
  since_ns_ = since_ns;
  renewed_ns_ = now_ns;
  const bool records = status.arms != 0 && status.off_since_ns == 0;
  first_arms_ = was_running ? status.arms + (records ? 0 : 1) : 1;
  if (was_running) {
    off_before_ns_ = status.off_ns + open_ns(status);
  } else if (status.arms > 1 || status.off_since_ns != 0) {
    stalled_ = true;  // what it was armed with at its start lapsed before we came
  }
  update(status, now_ns);
}

void TraceGaps::renewed(uint32_t lease_ms, uint64_t now_ns) {
  lease_ms_ = lease_ms;
  stalled_ = stalled_ || now_ns - renewed_ns_ >= uint64_t{lease_ms} * 1'000'000;
  renewed_ns_ = now_ns;
  renewal_error_.clear();
}

void TraceGaps::update(const target::ShimStatus& status, uint64_t now_ns) {
  if (!begun_) return;
  // Until it has recorded for us, and in the first turn, all that it tells was before.
  if (status.arms <= first_arms_) off_before_ns_ = std::max(off_before_ns_, status.off_ns);
  recording_ = status.arms >= first_arms_ && status.off_since_ns == 0;
  if (status.arms < first_arms_) return;
  const bool lost =
      status.reason == GPUPROF_REASON_QUIRK || status.reason == GPUPROF_REASON_FATAL_ERROR;
  if (status.state == GPUPROF_STATE_INERT && lost)
    ended_by_ = status.reason_text.empty() ? "no reason given" : status.reason_text;
  open_ = status.off_since_ns != 0;
  count_ = uint64_t{status.arms} - first_arms_ + (open_ ? 1 : 0);
  const uint64_t closed_ns =
      status.off_ns > off_before_ns_ ? status.off_ns - off_before_ns_ : uint64_t{0};
  const uint64_t now_open_ns = open_ns(status);
  const uint64_t observed_ns = now_ns > since_ns_ ? now_ns - since_ns_ : 0;
  implausible_ = count_ > observed_ns / kLeastCycleNs + 1 || closed_ns > observed_ns ||
                 now_open_ns > observed_ns - closed_ns;
  total_ns_ = closed_ns + now_open_ns;
  if (implausible_) count_ = total_ns_ = 0;
  // Before the first renewal it is the lease of its start that lapsed.
  const bool lapsed = lease_ms_ == 0 || now_ns - renewed_ns_ >= uint64_t{lease_ms_} * 1'000'000;
  if (count_ > 0 && lapsed && renewal_error_.empty()) stalled_ = true;
}

TraceGaps::Cause TraceGaps::cause() const {
  if (count_ == 0) return Cause::kNone;
  if (open_ && !ended_by_.empty()) return Cause::kEnded;
  if (count_ <= yields_) return Cause::kYielded;
  if (!renewal_error_.empty()) return Cause::kUnwritable;
  return stalled_ ? Cause::kStalled : Cause::kOverwritten;
}

std::string TraceGaps::line(uint32_t pid) const {
  const std::string who = "process " + std::to_string(pid);
  if (implausible_)
    return who +
           ": what its status page tells of gaps cannot be true and is left out: the process "
           "overwrote it, look there for stray writes";
  if (count_ == 0) return {};
  std::string out =
      who + " was not traced for " + (open_ && count_ == 1 ? "the last " : "") +
      human_duration(std::chrono::nanoseconds(total_ns_)) + " (" + std::to_string(count_) +
      (count_ == 1 ? " gap" : " gaps") +
      (yields_ == 0 || yields_ >= count_ ? std::string()
                                         : ", " + std::to_string(yields_) + " of them yielded") +
      "): ";
  switch (cause()) {
    case Cause::kYielded:
      out +=
          "CUPTI was yielded to other clients, as asked by SIGUSR1; GPU work of that time is "
          "missing";
      break;
    case Cause::kStalled:
      out +=
          "gpu-profiled was stopped or had no CPU time for longer than its lease; GPU work of that "
          "time is missing: let it run (no SIGSTOP, more CPU) and profile again";
      break;
    case Cause::kUnwritable:
      out += "its lease ran out, as it could not be renewed (" + renewal_error_ +
             "); GPU work of that time is missing: restart the process and profile again";
      break;
    case Cause::kEnded:
      out +=
          "its shim ended tracing for good (" + ended_by_ + "); GPU work of that time is missing";
      break;
    default:
      out +=
          "the shim's control page was overwritten, by the process itself or another program; GPU "
          "work of that time is missing: look there for stray writes";
      break;
  }
  return out;
}

}  // namespace gpuprof::cli

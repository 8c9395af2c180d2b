// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/discovery.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "daemon/base/clock.h"
#include "daemon/probe/usdt_notes.h"
#include "daemon/target/process.h"
#include "daemon/target/shim_file.h"

namespace gpuprof::cli {
namespace {

// In one tick: the leases of the others and the rings need the rest. At the start nobody has one.
constexpr uint64_t kFirstBudgetNs = 100'000'000;
constexpr uint64_t kBudgetNs = 10'000'000;
// A process that starts with a known file tells of itself. Where it did not by now, that was lost.
constexpr uint64_t kInjectionNs = 1'000'000'000;
// Its shim is mapped and not initialised yet.
constexpr uint64_t kAgainNs = 50'000'000;
constexpr size_t kMaxFiles = 4096;
// The memfd comes before the mapping of it, which is how a shim under another name is known.
constexpr uint64_t kSightedNs = 5'000'000;
constexpr int kSightedLooks = 6;
constexpr size_t kMaxSighted = 1024;
constexpr uint64_t kMoversNs = 500'000'000;
constexpr uint64_t kMoverNs = 5'000'000;  // a look takes 10 us: at most 0.2 % of a core
constexpr size_t kMostTold = 8;

// As ProcessId's.
uint64_t ticks_now() {
  timespec now = {};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return (static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec)) /
         kNsPerStartTick;
}

}  // namespace

Discovery::Discovery(Session& session, Console& console)
    : session_(session),
      console_(console),
      self_(static_cast<uint32_t>(::getpid())),
      started_ticks_(ticks_now()) {}

void Discovery::tick() {
  uint64_t now = monotonic_ns();
  if (!scan_.list(now) && told_.insert("/proc").second)
    console_.line("/proc cannot be read: no process will be found");
  for (const uint32_t pid : session_.take_sightings()) {
    if (sighted_.size() >= kMaxSighted) break;  // the listing finds it
    sighted_[pid] = kSightedLooks;
    scan_.look_again(pid, now);
  }
  const uint64_t deadline = now + (looked_at_all_ ? kBudgetNs : kFirstBudgetNs);
  while (now < deadline) {
    const auto pid = scan_.next(now);
    if (!pid) {
      looked_at_all_ = true;
      break;
    }
    if (*pid != self_) look(*pid, now);
    now = monotonic_ns();
  }
  if (session_.scope().may_change()) look_for_movers(now);
}

void Discovery::look(uint32_t pid, uint64_t now_ns) {
  auto id = target::process_id(pid);
  if (!id) return;
  const auto known = session_.controlled().find(*id);
  if (known != session_.controlled().end() && (known->second.channel || known->second.forgotten))
    return;
  auto file = target::ShimFile::find(pid, probe::is_shim_file);
  const auto sighted = sighted_.find(pid);
  if (!file) {
    if (file.error().code == Code::kPermission && unreadable_.size() < kMaxFiles)
      unreadable_.insert(pid);
    session_.node().unreadable = unreadable_.size();
    if (file.error().code == Code::kNoTarget && session_.scope().has(pid)) session_.consider(*id);
    if (sighted == sighted_.end()) return;
    scan_.look_again(pid, now_ns + kSightedNs);
    if (--sighted->second == 0) sighted_.erase(sighted);
    return;
  }
  if (sighted != sighted_.end()) sighted_.erase(sighted);
  const auto attached = files_.find({file->device, file->inode});
  const bool is_new = attached == files_.end();
  // Also of one that is not meant: others may start with its file.
  if (is_new && !attach(*file)) return;
  if (!session_.scope().has(pid)) {
    if (left_out_.size() < kMaxFiles) left_out_.insert(*id);
    session_.node().left_out = left_out_.size();
    return;
  }
  // Process_v1 of one that starts with a known file is on its way, and says more.
  const bool tells_of_itself = !is_new && id->start_ticks > attached->second;
  const uint64_t now_ticks = std::max(ticks_now(), id->start_ticks);
  if (tells_of_itself && (now_ticks - id->start_ticks) * kNsPerStartTick < kInjectionNs) {
    scan_.look_again(pid, now_ns + kInjectionNs);
  } else {
    adopt(*id, is_new, now_ns);
  }
}

// Who has moved into a cgroup, or out of it: a read of /proc for each process with a shim.
void Discovery::look_for_movers(uint64_t now_ns) {
  if (now_ns < next_movers_ns_) return;
  const Scope& scope = session_.scope();
  const size_t processes = session_.living().size() + left_out_.size();
  next_movers_ns_ = now_ns + std::max(kMoversNs, processes * kMoverNs);
  for (const Controlled* target : session_.living()) {
    if (const auto is_in = scope.in_cgroups(target->id.pid))
      session_.set_in_scope(target->id, *is_in);
  }
  std::vector<ProcessId> moved;
  std::erase_if(left_out_, [&](const ProcessId& process) {
    const auto is_in = scope.in_cgroups(process.pid);
    if (!is_in) return true;  // gone
    if (!*is_in || !scope.has(process.pid)) return false;
    auto now = target::process_id(process.pid);
    if (now && *now == process) moved.push_back(process);
    return true;
  });
  session_.node().left_out = left_out_.size();
  for (const ProcessId& process : moved) adopt(process, false, now_ns);
}

// Processes that start from now on are armed at their injection, so the time is taken before.
bool Discovery::attach(const target::ShimFile& file) {
  const FileKey key{file.device, file.inode};
  if (failed_.contains(key) || files_.size() + failed_.size() >= kMaxFiles) return false;
  auto ok = session_.attach(file);
  if (ok) {
    files_.emplace(key, ticks_now());
    session_.node().files = files_.size();
    return true;
  }
  failed_.insert(key);
  session_.node().failed = failed_.size();
  if (told_.size() < kMostTold && told_.insert(ok.error().message).second)
    console_.line(ok.error().message);
  return false;
}

void Discovery::adopt(ProcessId process, bool new_file, uint64_t now_ns) {
  auto ok = session_.adopt(process, {}, true);
  if (!ok) {
    if (ok.error().code == Code::kNotFound) return;
    const auto known = session_.controlled().find(process);
    if (known != session_.controlled().end() && known->second.attempts < kMaxAdoptAttempts) {
      scan_.look_again(process.pid, now_ns + kAgainNs);
    } else if (told_.size() < kMostTold && told_.insert(ok.error().message).second) {
      console_.line(ok.error().message);
    }
    return;
  }
  if (new_file && process.start_ticks > started_ticks_) ++session_.node().late;
}

}  // namespace gpuprof::cli

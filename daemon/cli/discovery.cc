// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/discovery.h"

#include <time.h>
#include <unistd.h>

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
  const uint64_t deadline = now + (looked_at_all_ ? kBudgetNs : kFirstBudgetNs);
  while (now < deadline) {
    const auto pid = scan_.next(now);
    if (!pid) {
      looked_at_all_ = true;
      return;
    }
    if (*pid != self_) look(*pid, now);
    now = monotonic_ns();
  }
}

void Discovery::look(uint32_t pid, uint64_t now_ns) {
  auto id = target::process_id(pid);
  if (!id) return;
  const auto known = session_.controlled().find(*id);
  if (known != session_.controlled().end() && (known->second.channel || known->second.forgotten))
    return;
  auto file = target::ShimFile::find(pid, probe::is_shim_file);
  if (!file) {
    if (file.error().code == Code::kPermission) ++counts_.unreadable;
    if (file.error().code == Code::kNoTarget) session_.consider(*id);
    return;
  }
  const auto attached = files_.find({file->device, file->inode});
  if (attached == files_.end()) {
    if (attach(*file)) adopt(*id, now_ns);
    return;
  }
  // Process_v1 of a younger one is on its way, and says more.
  const bool tells_of_itself = id->start_ticks > attached->second;
  const uint64_t age_ns = (ticks_now() - std::min(ticks_now(), id->start_ticks)) * kNsPerStartTick;
  if (tells_of_itself && age_ns < kInjectionNs) {
    scan_.look_again(pid, now_ns + kInjectionNs);
  } else {
    adopt(*id, now_ns);
  }
}

// Processes that start from now on are armed at their injection, so the time is taken before.
bool Discovery::attach(const target::ShimFile& file) {
  const FileKey key{file.device, file.inode};
  if (failed_.contains(key) || files_.size() + failed_.size() >= kMaxFiles) return false;
  auto ok = session_.attach(file);
  if (ok) {
    files_.emplace(key, ticks_now());
    counts_.files = files_.size();
    return true;
  }
  failed_.insert(key);
  counts_.failed = failed_.size();
  if (told_.size() < kMostTold && told_.insert(ok.error().message).second)
    console_.line(ok.error().message);
  return false;
}

void Discovery::adopt(ProcessId process, uint64_t now_ns) {
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
  ++counts_.processes;
  if (process.start_ticks > started_ticks_) ++counts_.late;
}

}  // namespace gpuprof::cli

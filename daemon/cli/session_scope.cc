// SPDX-License-Identifier: Apache-2.0
// Session, part five: a node's processes, of which a Scope says which count.
#include "daemon/base/clock.h"
#include "daemon/cli/session.h"
#include "daemon/target/process.h"

namespace gpuprof::cli {

Status Session::watch_scope() {
  // Where that fails a new file is found by looking at all processes alone.
  (void)probes_->watch_memfds();
  return scope_->tell(*probes_);
}

bool Session::is_meant(const probe::EventSource& source) {
  const ProcessId process = source.process;
  // eBPF knows by the cgroups that it is excluded.
  if (scope_->all() && !source.watched) return false;
  auto stat = target::process_stat(process.pid);
  const bool is_there = stat && stat->start_ticks == process.start_ticks;
  const bool meant = scope_->has(process.pid, is_there ? stat->comm : std::string(source.comm),
                                 source.watched && !is_there);
  // Where that fails it is dropped, or missing, here: as it is counted.
  if (meant && !source.watched) (void)probes_->watch(process);
  if (!meant && source.watched) (void)probes_->exclude(process, source.exec_id);
  return meant;
}

void Session::set_in_scope(ProcessId process, bool is_in) {
  const auto at = controlled_.find(process);
  if (at == controlled_.end()) return;
  Controlled& target = at->second;
  if (target.out_of_scope != is_in || !target.channel || !target.channel->acquired()) return;
  target.out_of_scope = !is_in;
  const uint64_t now_ns = monotonic_ns();
  if (!is_in) return pause(target, now_ns);
  target.unwatched = false;
  (void)probes_->watch(process.process());
  resume(target, now_ns);
}

// What it sent before it was disarmed counts; what it may do from now on for others does not.
void Session::forget_leaver(Controlled& target) {
  if (target.unwatched || !is_disarmed(target.status)) return;
  target.unwatched = true;
  probes_->unwatch(target.id.pid);
}

}  // namespace gpuprof::cli

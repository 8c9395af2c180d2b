// SPDX-License-Identifier: Apache-2.0
#include "daemon/join/joiner.h"

#include <algorithm>

#include "daemon/join/execution_key.h"
#include "daemon/join/grace_ring.h"
#include "daemon/join/launch_cache.h"
#include "daemon/join/pc_attribution.h"
#include "daemon/join/pc_joiner.h"
#include "daemon/join/process_table.h"
#include "daemon/join/window.h"

namespace gpuprof::join {
namespace {

constexpr uint64_t kOneQ32 = uint64_t{1} << 32;
constexpr uint64_t kExpiryPeriodNs = 1'000'000'000;

// An execution in its grace.
struct Waiting {
  uint64_t launch;
  uint64_t time_ns;
  uint64_t since_ns;
  uint32_t class_id;
  uint32_t process;
  uint64_t fingerprint;
};

}  // namespace

const char* match_name(Match match) {
  switch (match) {
    case Match::kInvalid:
      return "invalid";
    case Match::kExact:
      return "exact";
    case Match::kSampled:
      return "sampled";
    case Match::kUnmatched:
      return "unmatched";
  }
  return "invalid";
}

class Joiner::Impl {
 public:
  explicit Impl(const JoinerLimits& limits)
      : limits_(limits), window_(limits_), pcs_(limits_, processes_, window_, stats_) {
    limits_.max_waiting = std::max(limits_.max_waiting, 1u);
  }

  void add_launch(ProcessId id, const gpuprof_launch_v1& record, StackId stack, uint32_t tid);
  void add_execs(ProcessId id, std::span<const gpuprof_exec_v1> execs);
  void add_pc_samples(ProcessId id, std::span<const gpuprof_pc_sample_v1> samples);
  void add_window(ProcessId id, const gpuprof_window_v1& record);
  void add_ring_loss(ProcessId id, uint32_t probe, uint64_t records, uint32_t reason);
  Process* process(ProcessId id);
  [[nodiscard]] const Process* find(ProcessId id) const { return processes_.find(id); }
  void advance(uint64_t now_ns);
  JoinResult finish(FrameSource* frames, DeviceSource* device);
  [[nodiscard]] std::vector<StackId> live_stacks() const;
  void remove(ProcessId id);

  JoinStats stats_;

 private:
  void add_exec(uint32_t slot, Process& p, const gpuprof_exec_v1& exec);
  void join_exact(Process& p, Launch& launch, uint32_t class_id, uint64_t time_ns, uint64_t print);
  void count_weight(Launch& launch, uint32_t class_id, uint64_t time_ns);
  void resolve_oldest();
  void make_room(Process& p);
  void expire();
  void count(const LaunchCacheCounts& counts);
  void account(JoinResult& result);
  void reset_window();
  [[nodiscard]] uint32_t slot_of(ProcessId id) {
    return processes_.slot_of(id, limits_.max_processes);
  }

  JoinerLimits limits_;
  Window window_;
  uint32_t window_serial_ = 1;
  uint64_t now_ns_ = 0;
  uint64_t expired_at_ns_ = 0;
  ProcessTable processes_;
  Process refused_;
  GraceRing<Waiting> waiting_;
  size_t launch_count_ = 0;
  PcJoiner pcs_;
};

Process* Joiner::Impl::process(ProcessId id) {
  const uint32_t slot = slot_of(id);
  return slot == ProcessTable::kNone ? nullptr : &processes_[slot];
}

void Joiner::Impl::count(const LaunchCacheCounts& counts) {
  stats_.launches_retired += counts.retired;
  stats_.launches_never_executed += counts.never_executed;
  stats_.launches_evicted += counts.evicted;
}

// Frees a quarter of what is full, so that its cost is spread over as many insertions.
void Joiner::Impl::make_room(Process& p) {
  Process* victim = nullptr;
  if (p.launches.size() >= limits_.max_launches_per_process) {
    victim = &p;
  } else if (launch_count_ >= limits_.max_launches) {
    for (const auto& candidate : processes_.slots()) {
      if (candidate && (!victim || candidate->launches.size() > victim->launches.size())) {
        victim = candidate.get();
      }
    }
  }
  if (!victim) return;
  const size_t before = victim->launches.size();
  LaunchCacheCounts counts;
  victim->launches.make_room(before - before / 4 - 1, counts);
  launch_count_ -= before - victim->launches.size();
  count(counts);
}

void Joiner::Impl::add_launch(ProcessId id, const gpuprof_launch_v1& record, StackId stack,
                              uint32_t tid) {
  Process* p = process(id);
  if (!p) {
    ++stats_.processes_refused;
    return;
  }
  make_room(*p);
  Launch* launch = p->launches.insert(launch_key(record.epoch, record.correlation));
  if (!launch) {
    ++stats_.launches_duplicate;
    return;
  }
  ++launch_count_;
  ++stats_.launches;
  if (stack == kNoStack) ++stats_.launches_without_stack;
  launch->weight_q32 = std::max(record.weight_q32, kOneQ32);
  launch->last_use_ns = now_ns_;
  launch->stack = stack;
  launch->tid = tid;
  launch->is_graph = record.kind == GPUPROF_KIND_GRAPH;
  launch->name = static_cast<uint32_t>(record.name_id);
  p->max_weight_q32 = std::max(p->max_weight_q32, launch->weight_q32);
}

void Joiner::Impl::add_execs(ProcessId id, std::span<const gpuprof_exec_v1> execs) {
  if (execs.empty()) return;
  const uint32_t slot = slot_of(id);
  if (slot == ProcessTable::kNone) {
    stats_.processes_refused += execs.size();
    for (const gpuprof_exec_v1& exec : execs) {
      ++refused_.window.received;
      ++refused_.window.evicted;
      refused_.window.received_ns += duration_ns(exec);
      refused_.window.evicted_ns += duration_ns(exec);
    }
    return;
  }
  Process& p = processes_[slot];
  if (p.batch_count == execs.size() && same_execution(p.batch_first, execs.front()) &&
      same_execution(p.batch_last, execs.back())) {
    p.window.duplicates += execs.size();
    return;
  }
  p.batch_count = static_cast<uint32_t>(execs.size());
  p.batch_first = execs.front();
  p.batch_last = execs.back();
  for (const gpuprof_exec_v1& exec : execs) add_exec(slot, p, exec);
}

void Joiner::Impl::add_exec(uint32_t slot, Process& p, const gpuprof_exec_v1& exec) {
  const uint64_t time_ns = duration_ns(exec);
  const Serialized serialized = p.sampling
                                    ? p.sampling->at(exec.device_id, exec.context_id, exec.start_ns)
                                    : Serialized::kUnknown;
  const ClassKey key = class_key(slot, exec, serialized);
  if (p.last_class == UINT32_MAX || !(key == p.last_key)) {
    p.last_class = window_.classify(key, p.classes);
    p.last_key = key;
  }
  const uint32_t class_id = p.last_class;
  const ClassKey& used_key = window_.key_of(class_id);
  if (used_key.kind != key.kind) {
    ++stats_.executions_folded;
  } else if (used_key.stream_id != key.stream_id) {
    ++stats_.streams_folded;
  }
  ++p.window.received;
  p.window.received_ns += time_ns;
  ++p.window.pending;
  p.window.pending_ns += time_ns;
  if (p.sampling && exec.kind == GPUPROF_KIND_KERNEL &&
      (p.has_correlated_samples || serialized != Serialized::kFalse))
    pcs_.note_execution(key, launch_key(exec.epoch, exec.correlation), fingerprint(exec));
  if ((exec.flags & GPUPROF_EXEC_DEVICE_LAUNCHED) != 0) {
    window_.add_without_stack(class_id, Unmatched::kDeviceLaunched, time_ns);
  } else if ((exec.flags & GPUPROF_EXEC_BEFORE_ARM) != 0) {
    window_.add_without_stack(class_id, Unmatched::kBeforeArm, time_ns);
  } else {
    const uint64_t launch_id = launch_key(exec.epoch, exec.correlation);
    Launch* launch = p.launches.find(launch_id);
    if (launch) {
      join_exact(p, *launch, class_id, time_ns, fingerprint(exec));
    } else {
      if (waiting_.size() >= limits_.max_waiting) {
        ++stats_.executions_resolved_early;
        resolve_oldest();
      }
      waiting_.push({launch_id, time_ns, now_ns_, class_id, slot, fingerprint(exec)},
                    limits_.max_waiting);
    }
  }
}

void Joiner::Impl::join_exact(Process& p, Launch& launch, uint32_t class_id, uint64_t time_ns,
                              uint64_t print) {
  if (launch.executed && launch.last_execution == print) {
    --p.window.received;
    p.window.received_ns -= time_ns;
    --p.window.pending;
    p.window.pending_ns -= time_ns;
    ++p.window.duplicates;
    return;
  }
  const ClassKey& key = window_.key_of(class_id);
  const bool is_its = can_be_of(launch, key);
  // A launch of a kernel has one execution. Were all ids alike, the first call path would have all.
  if (!is_its || (launch.executed && !launch.is_graph && key.kind == GPUPROF_KIND_KERNEL)) {
    ++(is_its ? stats_.executions_beside_another : stats_.executions_of_another);
    window_.add_without_stack(class_id, Unmatched::kNoSample, time_ns);
    return;
  }
  launch.executed = true;
  launch.last_execution = print;
  launch.last_use_ns = now_ns_;
  if (launch.stack == kNoStack) {
    window_.add_without_stack(class_id, Unmatched::kLaunchLost, time_ns);
    return;
  }
  count_weight(launch, class_id, time_ns);
  if (window_.add_exact(class_id, launch.stack, launch.tid, time_ns, p.exact_rows)) {
    --p.window.pending;
    p.window.pending_ns -= time_ns;
    ++p.window.exact;
    p.window.exact_ns += time_ns;
  } else {
    ++stats_.rows_folded;
    window_.add_without_stack(class_id, Unmatched::kNoSample, time_ns);
  }
}

// A launch's weight counts once for each key, when its first execution of that key has come; its
// time counts with each execution.
void Joiner::Impl::count_weight(Launch& launch, uint32_t class_id, uint64_t time_ns) {
  if (window_.key_of(class_id).kind == GPUPROF_KIND_INVALID) return;  // [other]: unlike kernels
  const uint32_t group = window_.group_of(class_id);
  if (launch.window != window_serial_) {
    launch.window = window_serial_;
    launch.group_count = 0;
  }
  const uint32_t* begin = launch.groups;
  const uint32_t* end = begin + launch.group_count;
  const bool is_first = std::find(begin, end, group) == end;
  if (is_first) {
    if (launch.group_count == Launch::kMaxGroups) return;
    launch.groups[launch.group_count++] = group;
  }
  if (!window_.add_weight(group, launch.stack, launch.tid, launch.weight_q32, time_ns, is_first)) {
    ++stats_.stacks_trimmed;
  }
}

void Joiner::Impl::resolve_oldest() {
  const Waiting entry = waiting_.pop();
  Process& p = processes_[entry.process];
  if (Launch* launch = p.launches.find(entry.launch)) {
    join_exact(p, *launch, entry.class_id, entry.time_ns, entry.fingerprint);
  } else {
    window_.add_without_stack(entry.class_id, Unmatched::kNoSample, entry.time_ns);
  }
}

void Joiner::Impl::add_pc_samples(ProcessId id, std::span<const gpuprof_pc_sample_v1> samples) {
  const uint32_t slot = slot_of(id);
  if (slot != ProcessTable::kNone) {
    pcs_.add(slot, samples);
    return;
  }
  stats_.processes_refused += samples.size();
  for (const gpuprof_pc_sample_v1& record : samples) {
    ++refused_.window.pc.records;
    refused_.window.pc.counts += record.samples;
    refused_.window.pc.refused += record.samples;
  }
}

void Joiner::Impl::add_window(ProcessId id, const gpuprof_window_v1& record) {
  if (Process* p = process(id)) {
    p->sampled().add(record);
  } else {
    ++stats_.processes_refused;
  }
}

void Joiner::Impl::add_ring_loss(ProcessId id, uint32_t probe, uint64_t records, uint32_t reason) {
  Process* p = process(id);
  if (!p) return;
  const size_t slot = std::min<size_t>(reason, kLossReasonSlots - 1);
  if (probe == GPUPROF_PROBE_LAUNCH) p->launches_lost += records;
  if (probe == GPUPROF_PROBE_WINDOW) p->sampled().add_loss();
  if (probe == GPUPROF_PROBE_EXEC) p->window.lost_ring[slot] += records;
  if (probe == GPUPROF_PROBE_PC_SAMPLE) p->window.pc.lost_ring[slot] += records;
}

void Joiner::Impl::advance(uint64_t now_ns) {
  if (now_ns_ == 0) expired_at_ns_ = now_ns;
  now_ns_ = std::max(now_ns_, now_ns);
  while (!waiting_.empty() && waiting_.front().since_ns + limits_.grace_ns <= now_ns_)
    resolve_oldest();
  pcs_.advance(now_ns_);
  if (now_ns_ - expired_at_ns_ < kExpiryPeriodNs) return;
  expired_at_ns_ = now_ns_;
  expire();
}

void Joiner::Impl::expire() {
  LaunchCacheCounts counts;
  launch_count_ = 0;
  for (const auto& p : processes_.slots()) {
    if (!p) continue;
    if (p->is_gone && p->gone_ns + 2 * limits_.grace_ns <= now_ns_) {
      p->launches.clear(counts);
    } else {
      p->launches.expire(now_ns_, limits_.launch_age_ns, limits_.executed_launch_age_ns, counts);
    }
    launch_count_ += p->launches.size();
  }
  count(counts);
}

JoinResult Joiner::Impl::finish(FrameSource* frames, DeviceSource* device) {
  while (!waiting_.empty()) resolve_oldest();
  pcs_.resolve_all();
  Spread spread = window_.rows([&](uint32_t slot) {
    const Process& p = processes_[slot];
    return p.launches_lost != 0 && p.max_weight_q32 <= kOneQ32;
  });
  JoinResult result;
  result.rows = std::move(spread.rows);
  stats_.stacks_trimmed += spread.stacks_trimmed;
  if (!pcs_.table().empty()) {
    PcAttribution(pcs_.table(), window_, processes_, limits_, frames, device)
        .run(spread.class_of, result, stats_);
  }
  account(result);
  result.stats = stats_;
  reset_window();
  return result;
}

// What the rows say becomes the window's accounting; `pending` goes down by each of them, so that a
// row too many or too few shows in Accounting::check().
void Joiner::Impl::account(JoinResult& result) {
  std::vector<uint32_t> places(processes_.slots().size(), 0);
  for (const Row& row : result.rows) {
    Accounting& window = processes_[row.process].window;
    if (row.match == Match::kExact || row.match == Match::kInvalid) continue;
    window.pending -= row.executions;
    window.pending_ns -= row.time_ns;
    if (row.match == Match::kSampled) {
      window.sampled += row.executions;
      window.sampled_ns += row.time_ns;
    } else {
      window.unattributed[static_cast<size_t>(row.reason)] += row.executions;
      window.unattributed_ns[static_cast<size_t>(row.reason)] += row.time_ns;
    }
  }
  const auto add = [&](Process& p) {
    const std::optional<uint64_t> emitted = p.lifetime.emitted;
    const std::optional<uint64_t> pc_emitted = p.lifetime.pc.emitted;
    p.lifetime += p.window;
    p.lifetime.emitted = emitted;
    p.lifetime.pc.emitted = pc_emitted;
    ProcessResult made{p.id, p.window, p.lifetime, p.sampling != nullptr, 0, {}};
    if (p.sampling) {
      made.pc_period = p.sampling->period();
      made.windows = p.sampling->counts();
    }
    result.processes.push_back(made);
  };
  for (size_t slot = 0; slot < places.size(); ++slot) {
    places[slot] = static_cast<uint32_t>(result.processes.size());
    if (processes_.slots()[slot]) add(processes_[static_cast<uint32_t>(slot)]);
  }
  const bool any_refused = refused_.window.received != 0 || refused_.window.pc.records != 0;
  if (any_refused || refused_.lifetime.received != 0 || refused_.lifetime.pc.records != 0)
    add(refused_);
  for (Row& row : result.rows) row.process = places[row.process];
  for (PcFunction& function : result.pc_functions) function.process = places[function.process];
}

void Joiner::Impl::reset_window() {
  window_.clear();
  pcs_.reset_window();
  ++window_serial_;
  refused_.window = {};
  for (uint32_t slot = 0; slot < processes_.slots().size(); ++slot) {
    if (!processes_.slots()[slot]) continue;
    Process& p = processes_[slot];
    p.window = {};
    p.classes = p.exact_rows = p.pc_sources = p.pc_entries = 0;
    p.last_class = UINT32_MAX;
    if (!p.is_gone) continue;
    launch_count_ -= p.launches.size();
    LaunchCacheCounts counts;
    p.launches.make_room(0, counts);
    count(counts);
    if (p.sampling) pcs_.forget(slot);
    processes_.erase(slot);
  }
}

void Joiner::Impl::remove(ProcessId id) {
  if (!find(id)) return;
  Process& p = *process(id);
  if (!p.is_gone) p.gone_ns = now_ns_;
  p.is_gone = true;
}

std::vector<StackId> Joiner::Impl::live_stacks() const {
  std::vector<StackId> stacks;
  for (const auto& p : processes_.slots()) {
    if (p) p->launches.append_stacks(stacks);
  }
  std::sort(stacks.begin(), stacks.end());
  stacks.erase(std::unique(stacks.begin(), stacks.end()), stacks.end());
  return stacks;
}

Joiner::Joiner(const JoinerLimits& limits) : impl_(std::make_unique<Impl>(limits)) {}
Joiner::~Joiner() = default;

void Joiner::add_launch(ProcessId process, const gpuprof_launch_v1& launch, StackId stack,
                        uint32_t tid) {
  impl_->add_launch(process, launch, stack, tid);
}

void Joiner::add_execs(ProcessId process, std::span<const gpuprof_exec_v1> execs) {
  impl_->add_execs(process, execs);
}

void Joiner::add_pc_samples(ProcessId process, std::span<const gpuprof_pc_sample_v1> samples) {
  impl_->add_pc_samples(process, samples);
}

void Joiner::add_window(ProcessId process, const gpuprof_window_v1& record) {
  impl_->add_window(process, record);
}

void Joiner::add_ring_loss(ProcessId process, uint32_t probe, uint64_t records, uint32_t reason) {
  impl_->add_ring_loss(process, probe, records, reason);
}

void Joiner::set_shim_loss(ProcessId process, uint32_t drop_class, uint64_t total) {
  if (!is_execution_loss(drop_class)) return;
  Process* p = impl_->process(process);
  if (!p) return;
  // The window holds what came since it began: total less what earlier windows told.
  p->window.lost_shim[drop_class] = total - std::min(total, p->lifetime.lost_shim[drop_class]);
}

void Joiner::set_emitted(ProcessId process, uint64_t total) {
  if (Process* p = impl_->process(process)) p->lifetime.emitted = total;
}

void Joiner::set_pc_emitted(ProcessId process, uint64_t total) {
  if (Process* p = impl_->process(process)) p->lifetime.pc.emitted = total;
}

void Joiner::advance(uint64_t now_ns) { impl_->advance(now_ns); }
JoinResult Joiner::finish_window(FrameSource* frames, DeviceSource* device) {
  return impl_->finish(frames, device);
}

void Joiner::remove_process(ProcessId process) { impl_->remove(process); }

std::vector<StackId> Joiner::live_stacks() const { return impl_->live_stacks(); }

const Accounting* Joiner::window_accounting(ProcessId process) const {
  const Process* p = impl_->find(process);
  return p ? &p->window : nullptr;
}

const JoinStats& Joiner::stats() const { return impl_->stats_; }

}  // namespace gpuprof::join

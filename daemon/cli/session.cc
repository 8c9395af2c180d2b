// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/session.h"

#include <algorithm>

#include "daemon/base/clock.h"
#include "daemon/cli/diagnose.h"
#include "daemon/target/process.h"

namespace gpuprof::cli {
namespace {

using std::chrono::milliseconds;

// A killed daemon leaves the target armed for one lease; a stalled one must not lose its targets.
constexpr uint32_t kLeaseMs = 3000;
constexpr uint64_t kBusyPatienceNs = 2'000'000'000;
constexpr size_t kMaxNewcomers = 4096;
constexpr uint32_t kMostModules = 1u << 24;
constexpr uint64_t kPcSlackNs = 1'000'000'000;
constexpr uint64_t kMostPcPerNs = 1000;           // a large GPU's samples are some 10
constexpr milliseconds kReadPatience{10'000};     // for the images that samples name
constexpr uint64_t kAdoptBudgetNs = 200'000'000;  // in one tick
constexpr uint64_t kOrphansNs = 100'000'000;      // a walk over all that ever were

bool was_traced(const std::pair<const ProcessId, Controlled>& entry) {
  const Controlled& target = entry.second;
  return target.armed_ns != 0 || target.status.arms > target.arms_before;
}

ShimBaseline baseline_of(const target::ShimStatus& status) {
  ShimBaseline out;
  std::copy_n(status.probe_totals.begin(), out.emitted.size(), out.emitted.begin());
  std::copy_n(status.drop_totals.begin(), out.drops.size(), out.drops.begin());
  return out;
}

}  // namespace

bool is_disarmed(const target::ShimStatus& status) {
  return status.state == GPUPROF_STATE_IDLE || status.state == GPUPROF_STATE_DECLINED ||
         status.state == GPUPROF_STATE_INERT || status.state == GPUPROF_STATE_BUSY ||
         status.reason == GPUPROF_REASON_QUIRK;  // that CUPTI stays armed, and no launch changes it
}

Session::Session(const Options& options, Console& console)
    : options_(options),
      console_(console),
      recorder_(
          [this](ProcessId process, const gpuprof_process_v1& record) {
            if (!finishing_ && newcomers_.size() < kMaxNewcomers)
              newcomers_.push_back({process, record.memfd});
          },
          options.python
              ? Recorder::SetPython([this](ProcessId process, const gpuprof_python* python) {
                  probes_->set_python(process, python);
                })
              : nullptr,
          options.thread_frames),
      arbiter_(monotonic_ns()) {}

Result<std::unique_ptr<Session>> Session::create(const Options& options, Console& console,
                                                 std::optional<Scope> scope) {
  if (auto ok = check_capabilities(); !ok) return tl::unexpected<Error>(ok.error());
  if (auto ok = target::check_own_proc(); !ok) return tl::unexpected<Error>(ok.error());
  std::unique_ptr<Session> session(new Session(options, console));
  if (options.tier > GPUPROF_TIER_TRACE) session->recorder_.device_modules().enable();
  probe::ProbeOptions probe_options;
  if (auto ok = probe_options.add_fallbacks(options.debug_fallback); !ok)
    return tl::unexpected<Error>(ok.error());
  session->scope_ = std::move(scope);
  probe::EventSink* sink = &session->recorder_;
  if (session->scope_) {
    sink = &session->filter_.emplace(
        session->recorder_,
        [raw = session.get()](const probe::EventSource& source) { return raw->is_meant(source); });
  }
  auto probes = probe::ProbeSession::create(probe_options, *sink);
  if (!probes) return tl::unexpected<Error>(probes.error());
  session->probes_ = std::move(*probes);
  session->started_ns_ = monotonic_ns();
  return session;
}

Status Session::attach(const target::ShimFile& file) {
  auto cookie = probes_->attach(file.fd.get(), file.path);
  if (!cookie) return tl::unexpected<Error>(cookie.error());
  recorder_.note_shim(file.path);
  return {};
}

Status Session::watch(ProcessId process) {
  trees_.add(process);
  return probes_->watch(process);
}

target::ControlRequest Session::request() const {
  target::ControlRequest out;
  out.tier = options_.tier;
  out.pc_period = options_.pc_period;
  out.pc_duty = options_.pc_duty;
  out.stack_rate = options_.stack_rate;
  // Every launch means every launch: the process's own budget must not cut it again.
  if (options_.stack_rate == UINT32_MAX) {
    out.process_rate = UINT32_MAX;
    out.process_bytes = UINT64_MAX;
  } else if (options_.stack_rate != 0) {
    // As the defaults are to each other, 200 and 1,000: a thread that may have more needs a process
    // that gives more.
    out.process_rate =
        static_cast<uint32_t>(std::min<uint64_t>(5ull * options_.stack_rate, UINT32_MAX - 1));
  }
  out.lease_ms = kLeaseMs;
  out.sampler_seed = options_.seed;
  return out;
}

Status Session::adopt(ProcessId process, std::optional<int> memfd_hint, bool was_running) {
  Controlled& target = controlled_[process];
  if (target.channel || target.forgotten || target.attempts >= kMaxAdoptAttempts) return {};
  ++target.attempts;
  target.id = process;
  target.was_running = was_running;
  target.adopted_ns = target.asked_ns = monotonic_ns();
  auto pidfd = target::open_pidfd(process.process());
  if (!pidfd) {
    target.exited = true;
    exits_.add_gone(target);
    target.trouble = pidfd.error().message;
    return tl::unexpected<Error>(pidfd.error());
  }
  target.pidfd = std::move(*pidfd);
  exits_.add(target);
  trees_.add(process);
  auto ok = take_control(target, memfd_hint, was_running);
  if (const auto stat = target::process_stat(process.pid); !ok && stat) target.comm = stat->comm;
  if (!ok && ok.error().code != Code::kNotFound) target.trouble = ok.error().message;
  if (!target.channel) return ok;
  target.care.begin(monotonic_ns(), living_.size());
  living_.push_back(&target);
  return ok;
}

// Arms the shim of a process that is pinned by its pidfd, and leaves its channel in `target`.
// kNotFound: it exited at once.
Status Session::take_control(Controlled& target, std::optional<int> memfd_hint, bool was_running) {
  const ProcessId process = target.id;
  auto refuse = [](const Error& error) { return Status(tl::unexpected<Error>(error)); };
  auto channel = target::ShimChannel::open(process.process(), memfd_hint);
  // process_v1 named a memfd that is gone: the process is on its way out, though no zombie yet.
  const bool leaving = !channel && (has_exited(target.pidfd) ||
                                    (memfd_hint && channel.error().code == Code::kNoTarget));
  if (leaving)
    return fail(Code::kNotFound, "process " + std::to_string(process.pid) + " exited at once");
  if (!channel && channel.error().code == Code::kNoTarget)
    return refuse(no_status_page(process.pid));
  if (!channel) return refuse(channel.error());
  auto status = channel->read_status(target::ShimChannel::Wait::kBriefly);
  if (!status) return refuse(status.error());
  target.gaps.begin(*status, was_running, was_running ? target.adopted_ns : started_ns_,
                    monotonic_ns());
  if (was_running) {
    target.arms_before = status->arms;
    target.pc_counters_before = status->pc.counters;
  }
  take_status(target, *status);
  look_for_cupti_copies(target);
  if (auto modules = channel->open_for_reading(); modules && options_.tier > GPUPROF_TIER_TRACE)
    recorder_.device_modules().add_process(process, std::move(*modules));
  target.armed_late = !was_running && status->state == GPUPROF_STATE_IDLE;
  if (!was_running && status->state == GPUPROF_STATE_INERT &&
      status->reason == GPUPROF_REASON_EXITING) {  // nothing left to control
    target.channel = std::move(*channel);
    return {};
  }
  if (auto trouble = explain_state(process.pid, *status);
      trouble && trouble->code == Code::kNoTarget)
    return refuse(*trouble);
  if (auto ok = channel->acquire("gpu-profiled"); !ok) return refuse(ok.error());
  recorder_.add_process(process, was_running ? baseline_of(*status) : ShimBaseline());
  // Of a scope too: what it sends until it is disarmed counts, though it left its cgroup.
  if (auto ok = probes_->watch(process.process()); !ok) return refuse(ok.error());
  target::ControlRequest wish = request();
  ask_for_gpus(*status, target, wish);
  target.tier = wish.tier;
  if (yielded_ns_ != 0) wish.tier = GPUPROF_TIER_OFF;
  if (auto ok = channel->request(wish); !ok) {
    give_up_gpus(target);
    return refuse(ok.error());
  }
  if (yielded_ns_ != 0) target.gaps.yielded();  // armed by its environment until now
  target.channel = std::move(*channel);
  return {};
}

// The page is the target's: what cannot be true is left out.
void Session::take_status(Controlled& target, target::ShimStatus status) {
  if (status.module_count > kMostModules) {
    target.implausible_modules = true;
    status.module_count = target.status.module_count;
  }
  const uint64_t since_ns = target.was_running ? target.adopted_ns : started_ns_;
  const uint64_t most = (monotonic_ns() - since_ns + kPcSlackNs) * kMostPcPerNs;
  for (size_t i = 0; i < status.pc.counters.size(); ++i) {
    uint64_t& counter = status.pc.counters[i];
    const uint64_t before = target.pc_counters_before[i];
    if (counter <= before || counter - before <= most) continue;
    target.implausible_pc = true;
    counter = target.status.pc.counters[i];
  }
  target.status = status;
  if (!finishing_) target.gaps.update(status, monotonic_ns());
  // Asked to stop, the shim forgets why it never began; what it counted stays.
  if (options_.tier <= GPUPROF_TIER_TRACE) return;
  if (status.pc.state == GPUPROF_PC_OFF) {
    target.pc.counters = status.pc.counters;
    return;
  }
  target.pc = status.pc;
  const auto refused = explain_pc_sampling(target.id.pid, status);
  if (!refused || target.pc_refusal_told) return;
  target.pc_refusal_told = true;
  if (pc_refusal_told_ == status.pc.reason_text && !pc_refusal_told_.empty()) return;
  pc_refusal_told_ = status.pc.reason_text;
  console_.line(*refused);
}

// exec closed the memfd of the program before and opened another: ours still tells its totals.
void Session::retire_images_before(ProcessId process) {
  for (auto it = controlled_.lower_bound(process.process());
       it != controlled_.end() && it->first.process() == process.process(); ++it) {
    auto& [id, target] = *it;
    if (id.image >= process.image || target.exited) continue;
    target.exited = true;
    target.forgotten = true;
    give_up_gpus(target);
    recorder_.device_modules().memory_gone(id);
    if (target.channel) {
      if (auto status = target.channel->read_status()) {
        take_status(target, *status);
        recorder_.set_totals(id, *status);
      }
    }
    judge(target);
    // One process may become a thousand programs before it ends.
    target.channel.reset();
    target.pidfd.reset();
  }
}

// Children whose process_v1 was lost show up by their records (Recorder::record_of).
void Session::find_orphans(uint64_t now_ns) {
  // Not while the last tick had no time for all.
  if (!newcomers_.empty() || finishing_ || now_ns < next_orphans_ns_) return;
  next_orphans_ns_ = now_ns + kOrphansNs;
  for (const auto& [id, record] : recorder_.processes()) {
    if (record.executions + record.stacks_taken > 0 && !controlled_.contains(id))
      newcomers_.push_back({id, -1});
  }
}

void Session::adopt_newcomers() {
  if (recorder_.programs_refused() > 0 && !table_full_told_) {
    table_full_told_ = true;
    console_.line("more than " + std::to_string(Recorder::kMaxProcesses) +
                  " programs: those that begin from now on are not profiled");
  }
  const uint64_t deadline = monotonic_ns() + kAdoptBudgetNs;
  while (!newcomers_.empty() && monotonic_ns() < deadline) {
    const Newcomer next = newcomers_.front();
    newcomers_.pop_front();
    const auto known = controlled_.find(next.process);
    if (known != controlled_.end() &&
        (known->second.channel || known->second.forgotten || next.memfd < 0))
      continue;
    retire_images_before(next.process);
    auto ok =
        adopt(next.process, next.memfd >= 0 ? std::optional(next.memfd) : std::nullopt, false);
    const bool gone = !ok && ok.error().code == Code::kNotFound;  // a short process: nothing to say
    if (ok || gone || children_trouble_told_) continue;
    children_trouble_told_ = true;
    console_.line(ok.error().message);
  }
}

void Session::note_exit(Controlled& target) {
  target.exited = true;
  target.forgotten = true;
  give_up_gpus(target);
  if (target.channel) {
    // The descriptor outlives the process: its final totals are still there.
    if (auto status = target.channel->read_status()) {
      take_status(target, *status);
      recorder_.set_totals(target.id, *status);
    }
  }
  judge(target);
  probes_->forget(target.id.process());
  recorder_.process_exited(target.id);
  // Thousands of short processes may pass before the profile is written. The memfd is also the last
  // holder of the shim's pages.
  target.channel.reset();
  target.pidfd.reset();
}

void Session::renew_lease(Controlled& target) { lease_written(target, target.channel->renew()); }

void Session::lease_written(Controlled& target, const Status& written) {
  if (written) {
    target.gaps.renewed(kLeaseMs, monotonic_ns());
    return;
  }
  target.gaps.renewal_failed(written.error().message);
  if (target.trouble.empty()) target.trouble = written.error().message;
}

void Session::look_after(Controlled& target, uint64_t now_ns) {
  if (!target.channel || !target.channel->acquired() || target.exited) return;
  const bool renew = target.care.take_renewal(now_ns, living_.size());
  if (renew && !finishing_) renew_lease(target);
  if (!target.care.read_due(now_ns, renew, target.armed_ns != 0 && !yield_pending())) return;
  auto status = target.channel->read_status();
  if (!status) {  // stopped, hostile, or gone in a moment
    target.care.read_failed(now_ns);
    return;
  }
  target.care.read_done(now_ns);
  take_status(target, *status);
  if (target.out_of_scope) return forget_leaver(target);
  if (status->state == GPUPROF_STATE_TRACING || status->state == GPUPROF_STATE_TRACING_PC) {
    if (target.armed_ns == 0) target.armed_ns = now_ns;
    look_for_records(target, now_ns);
    target.trouble.clear();
    return;
  }
  auto trouble = explain_state(target.id.pid, *status);
  if (!trouble || target.trouble_told || finishing_) return;
  if (status->reason == GPUPROF_REASON_EXITING) return;
  // It tries again by itself, and the other client may end.
  const bool may_pass = trouble->code == Code::kUnavailable;
  if (may_pass && now_ns - target.asked_ns < kBusyPatienceNs) return;
  target.trouble_told = true;
  target.trouble = trouble->message;
  console_.line(trouble->message);
}

// A flood ends one poll after about 100 ms; this goes on, within reason.
void Session::drain(int rounds) {
  for (int round = 0; round < rounds; ++round) {
    auto read = probes_->poll(milliseconds(0));
    if (!read || *read == 0) return;
  }
}

void Session::tick(milliseconds wait) {
  // Exits first: what a process wrote before it exited is drained before it is forgotten.
  std::vector<Controlled*> exits = exits_.take();
  std::erase_if(exits, [](const Controlled* target) { return target->forgotten; });
  if (auto ok = probes_->poll(wait); !ok && !poll_failure_told_) {
    poll_failure_told_ = true;
    console_.line(ok.error().message);
  }
  if (!exits.empty()) drain();
  const uint64_t now = monotonic_ns();
  recorder_.advance(now);
  find_orphans(now);
  adopt_newcomers();
  for (Controlled* target : exits) note_exit(*target);
  std::erase_if(living_, [](const Controlled* t) { return !t->channel || t->exited; });
  for (Controlled* target : living_) look_after(*target, now);
  share_gpus(now);
  tell_yielded(now);
  if (!finishing_) look_at_trees(now);
}

uint64_t Session::observed_ns() const {
  return (ended_ns_ != 0 ? ended_ns_ : monotonic_ns()) - started_ns_;
}

bool Session::any_alive() const {
  return std::any_of(living_.begin(), living_.end(),
                     [](const Controlled* target) { return target->channel && !target->exited; });
}

std::optional<std::string> Session::why_nothing() const {
  if (yielded_ns_ != 0)
    return "CUPTI was yielded (SIGUSR1) before anything was traced, and not taken back (SIGUSR2)";
  if (forgotten_traced_ || std::ranges::any_of(controlled_, was_traced)) return {};
  for (const auto& [id, target] : controlled_) {
    if (target.trouble_told) return "";
    if (!target.trouble.empty()) return target.trouble;
    if (auto trouble = explain_state(id.pid, target.status)) return trouble->message;
    if (auto stopped = explain_stopped(id.pid)) return stopped;
  }
  return "no GPU work was launched while attached, so tracing could not begin: attach while the "
         "program uses the GPU, or for longer";
}

bool Session::all_disarmed() {
  bool all = true;
  for (Controlled* target : living_) {
    if (!target->channel || target->exited) continue;
    auto status = target->channel->read_status();
    if (!status) continue;
    take_status(*target, *status);
    all = all && is_disarmed(*status);
  }
  return all;
}

Recorder::Cut Session::cut_window() {
  constexpr int kRounds = 3;  // a flood has no end, and leases wait
  drain(kRounds);
  recorder_.advance(monotonic_ns());
  Recorder::Cut cut = recorder_.cut_window();
  // Those that could not be profiled have no record.
  for (const auto& [id, target] : controlled_) {
    if (target.forgotten && recorder_.find(id) == nullptr) cut.ended.push_back(id);
  }
  return cut;
}

void Session::forget(const std::vector<ProcessId>& ended) {
  for (const ProcessId id : ended) {
    recorder_.forget(id);
    const auto it = controlled_.find(id);
    if (it == controlled_.end() || !it->second.forgotten) continue;
    forgotten_traced_ = forgotten_traced_ || was_traced(*it);
    ++forgotten_;
    exits_.forget(it->second);
    std::erase(living_, &it->second);
    controlled_.erase(it);
  }
}

join::JoinResult Session::finish(milliseconds patience, const std::function<bool()>& hurry) {
  ended_ns_ = monotonic_ns();
  for (auto& [id, target] : controlled_) {
    // A shim whose lease lapsed meanwhile is not told from one that was asked to stop, afterwards.
    if (!target.channel || target.exited) continue;
    if (auto status = target.channel->read_status()) take_status(target, *status);
    look_for_cupti_copies(target);  // what was loaded meanwhile
  }
  judge_all();
  finishing_ = true;
  for (auto& [id, target] : controlled_) give_up_gpus(target);
  for (auto& [id, target] : controlled_) {
    if (!target.channel || !target.channel->acquired() || target.exited) continue;
    if (auto ok = target.channel->release(); !ok && target.trouble.empty())
      target.trouble = ok.error().message;
  }
  const uint64_t deadline = ended_ns_ + static_cast<uint64_t>(patience.count()) * 1'000'000;
  while (any_alive() && !all_disarmed() && monotonic_ns() < deadline && !hurry())
    tick(milliseconds(20));
  drain();
  for (auto& [id, target] : controlled_) {
    if (target.forgotten) continue;
    // The totals of a shim that still emits are no end of a count.
    if (target.channel && (target.exited || is_disarmed(target.status)))
      recorder_.set_totals(id, target.status);
  }
  probes_->flush();
  recorder_.advance(monotonic_ns());
  recorder_.device_modules().settle(kReadPatience, hurry);
  return recorder_.finish();
}

}  // namespace gpuprof::cli

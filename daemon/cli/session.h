// SPDX-License-Identifier: Apache-2.0
//
// Session: one profiling run, from attach to the joined result. `run` and `--pid` differ only in
// how it begins and what ends it.
#pragma once

#include <array>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/base/process_id.h"
#include "daemon/base/result.h"
#include "daemon/base/unique_fd.h"
#include "daemon/cli/care_schedule.h"
#include "daemon/cli/console.h"
#include "daemon/cli/cupti_copies.h"
#include "daemon/cli/exit_watch.h"
#include "daemon/cli/options.h"
#include "daemon/cli/recorder.h"
#include "daemon/cli/scope.h"
#include "daemon/cli/scope_filter.h"
#include "daemon/cli/trace_gaps.h"
#include "daemon/cli/tree_watch.h"
#include "daemon/join/joiner.h"
#include "daemon/probe/probe_session.h"
#include "daemon/target/gpu_arbiter.h"
#include "daemon/target/shim_channel.h"
#include "daemon/target/shim_file.h"

namespace gpuprof::cli {

// A hostile program can say as often as it likes that it was injected, and each look at it may cost
// ShimChannel's patience: the leases of the others need the time.
inline constexpr uint32_t kMaxAdoptAttempts = 4;

// Launches that no execution was recorded of, as long as there was none at all.
struct Unrecorded {
  uint64_t records = 0;   // of the shim, at the begin
  uint64_t launches = 0;  // likewise, then at `since_ns`
  uint64_t since_ns = 0;  // CLOCK_MONOTONIC
  bool begun = false;
  bool over = false;  // one came, or it was told
};

// One program of a process whose shim we control, or tried to.
struct Controlled {
  ProcessId id;  // with the image
  UniqueFd pidfd;
  // Readable after the process exited, until its final totals are read (`forgotten`).
  std::optional<target::ShimChannel> channel;
  target::ShimStatus status;               // as last read
  gpuprof_tier tier = GPUPROF_TIER_TRACE;  // asked for, but while CUPTI is yielded
  target::PcStatus pc;      // as last read while it was asked for; its counters go on
  std::string trouble;      // why it could not be profiled; empty: none
  uint64_t adopted_ns = 0;  // CLOCK_MONOTONIC
  uint64_t asked_ns = 0;    // to trace, most recently
  uint64_t armed_ns = 0;    // first seen tracing, 0: never
  TraceGaps gaps;
  std::optional<CuptiCopies> cupti_copies;  // a second libcupti that matters
  std::array<uint64_t, 16> pc_counters_before{};
  uint32_t arms_before = 0;          // how often it was armed before us
  bool implausible_pc = false;       // a count of the page that cannot be true was left out
  bool implausible_modules = false;  // likewise
  bool was_running = false;          // it was there before us
  bool armed_late = false;           // armed by us, not by its own environment
  bool out_of_scope = false;         // and asked to disarm for it
  bool unwatched = false;            // and disarmed
  bool exited = false;
  // Of the table at the end, once it has ended or the run: as doctor says it, of this run.
  bool judged = false;
  Verdict verdict = Verdict::kUnseen;
  std::string finding;  // a whole line; empty: nothing is wrong
  std::vector<std::string> warnings;
  std::string comm;  // where it was refused
  Unrecorded unrecorded;
  bool forgotten = false;  // its records are drained and its books closed
  bool trouble_told = false;
  bool pc_refusal_told = false;
  std::vector<target::GpuUse> gpus;  // once it has ended, or the session
  uint64_t next_claims_ns = 0;       // not read before, where it could not be read
  uint32_t attempts = 0;             // to take control of it
  CareSchedule care;
};

// SIGUSR1 and SIGUSR2: with --yield they are ours, and never the command's.
bool is_yield_signal(int signal);

// What was found on a node, and what was not.
struct NodeCounts {
  uint64_t files = 0;       // shim files attached to
  uint64_t same_files = 0;  // and seen under another identity, but known to be one of these
  uint64_t failed = 0;      // shim files that could not be attached to
  // Found by looking, started after us: what they did before is missing.
  uint64_t late = 0;
  uint64_t left_out = 0;    // processes with a shim that are not meant, at the last look
  uint64_t unreadable = 0;  // processes that could not be looked at
};

// Does a shim in this state send nothing any more?
bool is_disarmed(const target::ShimStatus& status);

// Order: create, attach, watch/adopt, tick until the caller has enough, finish. One thread.
// A shim that stops answering, a target that exits, a full ring: all of it is counted and told, and
// none of it ends the session.
class Session {
 public:
  // `scope`: which processes of the node count; none: those that are named to watch().
  static Result<std::unique_ptr<Session>> create(const Options& options, Console& console,
                                                 std::optional<Scope> scope = {});

  // The probes of this shim file, in every process that maps it. Watch first: a shim replays its
  // names and devices once, when it sees the first listener.
  Status attach(const target::ShimFile& file);
  // Records of `process` and of every child it will have count from now on.
  Status watch(ProcessId process);
  // From now on records of the scope's processes count; where it is every process, those that are
  // injected arm themselves. Before attach(): a process that starts between the two would be
  // missed.
  Status watch_scope();
  [[nodiscard]] const Scope& scope() const { return *scope_; }
  // A process that we control has left the scope, and is disarmed, or has come back to it.
  void set_in_scope(ProcessId process, bool is_in);
  // Processes that have just made a shim's memfd; see ProbeSession::take_sightings().
  std::vector<uint32_t> take_sightings() { return probes_->take_sightings(); }
  NodeCounts& node() { return node_; }
  [[nodiscard]] const NodeCounts& node() const { return node_; }
  // Null without a scope.
  [[nodiscard]] const ScopeFilter* filter() const { return filter_ ? &*filter_ : nullptr; }
  // Takes control of a process's shim and arms it. Errors say why it cannot be profiled.
  Status adopt(ProcessId process, std::optional<int> memfd_hint, bool was_running);

  // A process that has no shim, and belongs to no tree of ours: does it use CUDA?
  void consider(ProcessId process);

  // With --yield: SIGUSR1 disarms all targets, and those to come, so that other clients of CUPTI
  // can subscribe in them; SIGUSR2 arms them again. False: another signal, or no --yield.
  bool heed(int signal);

  // Drains the rings, takes in new children, renews leases, notices exits. At least every 100 ms;
  // waits up to `wait` for records.
  void tick(std::chrono::milliseconds wait);
  // Is any process whose shim we control still alive?
  [[nodiscard]] bool any_alive() const;
  // Where not one target traced: why, in one line. Empty: that has been told on the console
  // already.
  [[nodiscard]] std::optional<std::string> why_nothing() const;

  // Ends the output window where it is now: the rings are drained, and what comes from now on
  // belongs to the next one.
  Recorder::Cut cut_window();
  // Once their last window is told: what is known of processes that ended, so that a run of days
  // keeps what is alive.
  void forget(const std::vector<ProcessId>& ended);
  // A process's shim was found, or seen, since the session began.
  [[nodiscard]] bool any_target() const { return !controlled_.empty() || forgotten_ != 0; }

  // Disarms and waits (at most `patience`) until each shim has sent its last records, drains the
  // rings and closes the books. `hurry` is asked between polls: true ends the wait.
  join::JoinResult finish(std::chrono::milliseconds patience, const std::function<bool()>& hurry);

  [[nodiscard]] Recorder& recorder() { return recorder_; }
  [[nodiscard]] const Recorder& recorder() const { return recorder_; }
  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] const std::map<ProcessId, Controlled>& controlled() const { return controlled_; }
  [[nodiscard]] const std::vector<Controlled*>& living() const { return living_; }
  [[nodiscard]] const probe::ProbeSession& probes() const { return *probes_; }
  [[nodiscard]] uint64_t started_ns() const { return started_ns_; }
  [[nodiscard]] uint64_t ended_ns() const { return ended_ns_; }
  // Processes that use CUDA and whose shim is not ours to control, or that have none; in doctor's
  // words. beside_left_out(): more of them.
  [[nodiscard]] std::vector<ProcessCheck> beside() const;
  [[nodiscard]] uint64_t beside_left_out() const { return trees_.more(); }

  // From the start to the end, or to now.
  [[nodiscard]] uint64_t observed_ns() const;

 private:
  Session(const Options& options, Console& console);
  // session_scope.cc
  void forget_leaver(Controlled& target);
  bool is_meant(const probe::EventSource& source);
  Status take_control(Controlled& target, std::optional<int> memfd_hint, bool was_running);
  void find_orphans(uint64_t now_ns);
  void adopt_newcomers();
  void retire_images_before(ProcessId process);
  void look_after(Controlled& target, uint64_t now_ns);
  void renew_lease(Controlled& target);
  void lease_written(Controlled& target, const Status& written);
  // session_gpus.cc: who may PC-sample which GPU.
  void ask_for_gpus(const target::ShimStatus& status, Controlled& target,
                    target::ControlRequest& request);
  void share_gpus(uint64_t now_ns);
  void give_up_gpus(Controlled& target);
  void tell_taken(const Controlled& target);
  // session_yield.cc
  void yield();
  void take_back();
  void pause(Controlled& target, uint64_t now_ns);
  void resume(Controlled& target, uint64_t now_ns);
  void tell_yielded(uint64_t now_ns);
  [[nodiscard]] bool yield_pending() const { return yielded_ns_ != 0 && !yield_told_; }
  // session_trees.cc
  [[nodiscard]] bool is_ours(ProcessId process) const;
  void look_at_trees(uint64_t now_ns);
  void tell_beside();
  void look_for_records(Controlled& target, uint64_t now_ns);
  static void judge(Controlled& target);
  void judge_all();
  // session_copies.cc
  void look_for_cupti_copies(Controlled& target);
  void note_exit(Controlled& target);
  void take_status(Controlled& target, target::ShimStatus status);
  bool all_disarmed();
  void drain(int rounds = 50);
  target::ControlRequest request() const;

  const Options& options_;
  Console& console_;
  Recorder recorder_;
  std::optional<Scope> scope_;
  std::optional<ScopeFilter> filter_;  // before the recorder
  NodeCounts node_;
  std::unique_ptr<probe::ProbeSession> probes_;
  std::map<ProcessId, Controlled> controlled_;  // forget() alone takes out
  std::vector<Controlled*> living_;             // with a channel, until they exit
  ExitWatch exits_;
  struct Newcomer {
    ProcessId process;
    int memfd = -1;
  };
  std::deque<Newcomer> newcomers_;
  uint64_t next_orphans_ns_ = 0;
  bool children_trouble_told_ = false;
  target::GpuArbiter arbiter_;
  uint64_t next_sharing_ns_ = 0;
  std::set<std::pair<target::GpuUuid, uint32_t>> taken_told_;  // GPU, and the process that has it
  std::string pc_refusal_told_;  // why, so that a hundred ranks say it once
  bool table_full_told_ = false;
  std::set<std::pair<std::string, std::string>> cupti_copies_told_;  // the shim's, the other one
  uint32_t cupti_looks_ = 0;
  uint64_t yielded_ns_ = 0;  // since when; 0: not
  bool yield_told_ = false;  // that it is done
  bool yield_delay_told_ = false;
  uint64_t forgotten_ = 0;         // targets
  bool forgotten_traced_ = false;  // one of them
  TreeWatch trees_;
  size_t beside_told_ = 0;
  bool unrecorded_told_ = false;
  bool finishing_ = false;
  bool poll_failure_told_ = false;
  uint64_t started_ns_ = 0;
  uint64_t ended_ns_ = 0;
};

}  // namespace gpuprof::cli

// SPDX-License-Identifier: Apache-2.0
//
// ProbeSession: eBPF on the shim's USDT probes, from attach to validated records in an EventSink.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/process_id.h"
#include "daemon/base/result.h"
#include "daemon/probe/event_sink.h"
#include "proto/ring_abi.h"
#include "proto/usdt_abi.h"

namespace gpuprof::probe {

// Defaults lose nothing at 200k executions/s (22 MB/s) of one process when poll() is called at
// least every 500 ms. 1M executions/s are 112 MB/s: for that raise the rings and poll every 50 ms.
struct ProbeOptions {
  // Forced fallbacks, for tests and for narrowing down a kernel's fault. Each one makes the session
  // behave as on a kernel without the feature.
  bool no_uprobe_multi = false;  // perf uprobes, one per probe (kernels before 6.6)
  bool no_sleepable = false;     // nothing is faulted in (before 6.0)
  bool no_nop5 = false;          // attach to the 1-byte nop (before 6.18, and other than x86-64)
  bool no_find_vma = false;      // stacks of threads have no known top (before 5.17)

  // As if this stood in the way of loading the programs: what is said then, tests read.
  enum class Pretend { kNothing, kOldKernel, kNoBtf, kLockdown, kMemlock };
  Pretend pretend = Pretend::kNothing;

  uint32_t events_ring_bytes = 16u << 20;  // powers of two, multiples of the page size
  // The daemon's RSS holds every ring twice (the data is mapped twice, and present at once). At a
  // quarter full the reader is woken; the rest takes 92 of the largest stacks, docs/adr/0008.
  uint32_t stacks_ring_bytes = 32u << 20;

  // Most bytes a second that one process, or all processes of one user, may put into one ring. Each
  // ring has its own account, so stacks cannot eat the room of executions.
  uint64_t process_bytes_per_s = 128ull << 20;
  uint64_t user_bytes_per_s = 512ull << 20;

  // How long a sequence gap stays open for records that are still on their way (a thread that was
  // preempted between taking its number and firing), before it is counted as lost.
  std::chrono::milliseconds reorder_window{250};

  uint32_t max_processes = 16384;  // entries of the watch map, forked children included

  // Adds what `list` names: "no-uprobe-multi,no-sleepable,no-nop5,no-find-vma" in any subset and
  // order ("_" for "-" is fine), or one of "pretend-old-kernel", "-no-btf", "-lockdown",
  // "-memlock". An unknown name is kInvalidArgument. create() applies the environment's
  // GPU_PROFILED_DEBUG_FALLBACK by this.
  Status add_fallbacks(std::string_view list);
};

inline constexpr size_t kLossReasonCount = 5;  // of enum LossReason

// Totals since create(). Records are USDT records, not batches.
struct ProbeCounters {
  std::array<uint64_t, GPUPROF_BPF_COUNTER_COUNT> bpf{};  // enum gpuprof_bpf_counter
  std::array<uint64_t, GPUPROF_PROBE_COUNT> delivered{};  // records handed to the sink
  // Records missing, as told by on_loss: [probe][LossReason].
  std::array<std::array<uint64_t, kLossReasonCount>, GPUPROF_PROBE_COUNT> lost{};
  uint64_t stacks_delivered = 0;
  uint64_t stacks_lost = 0;         // launches delivered without a stack
  uint64_t stacks_cut = 0;          // deeper than GPUPROF_STACK_MAX_BYTES
  uint64_t stacks_partial = 0;      // ended at an unreadable page
  uint64_t duplicate_records = 0;   // came twice (two attaches of one inode); delivered once
  uint64_t duplicate_attaches = 0;  // attaches found to be of an inode already attached, undone
  uint64_t late_records = 0;        // after their gap was counted as lost; not delivered
  uint64_t malformed = 0;           // ring entries refused by the daemon's own checks
  uint64_t unknown_probes = 0;      // of attached files, left out: a newer ABI's
  uint64_t names_incomplete = 0;    // names given up: chunks missing, or too many at once
};

// Lifetime: create, attach and watch in any order and number, poll until done, flush, destroy.
// Destruction (or the process's death by any signal) detaches everything: links live in
// descriptors. Threads: one thread calls everything; the sink is called inside poll(), flush() and
// forget() only. Failure: create and attach name the missing capability or kernel feature in one
// line.
class ProbeSession {
 public:
  // Loads the programs, probing the kernel's features. Needs CAP_BPF and CAP_PERFMON, and
  // CAP_SYS_ADMIN where perf uprobes have to serve.
  static Result<std::unique_ptr<ProbeSession>> create(const ProbeOptions& options, EventSink& sink);
  ~ProbeSession();
  ProbeSession(const ProbeSession&) = delete;
  ProbeSession& operator=(const ProbeSession&) = delete;

  // Attaches to the shim file behind `shim_fd` (verified by the caller, opened for reading; a
  // duplicate is kept) and raises its probes' semaphores in every process that maps it. `path` is
  // for messages only. Returns a cookie; the same file again returns the same cookie. kCorrupt: the
  // file's notes are not the ABI's.
  Result<uint64_t> attach(int shim_fd, std::string path);
  // Undoes attach(). Records already in the rings are still delivered.
  void detach(uint64_t cookie);

  // Delivers records of this process and of every child it forks from now on. start_ticks 0 matches
  // any process of that number. kUnavailable: max_processes are watched already.
  // process_v1 of every process that maps an attached file is delivered in any case.
  Status watch(ProcessId process);
  void unwatch(uint32_t pid);
  // From now on the Python frames of the process's launches come with their stacks; null: none do.
  // `python` is for this process and image; children inherit it at fork, exec does not end it.
  void set_python(ProcessId process, const gpuprof_python* python);
  // Delivers records of all processes. While on, the semaphore of `autoarm` is raised too, so that
  // processes which are injected from now on arm themselves.
  Status watch_all(bool on);
  // As watch_all(), for processes in this cgroup of the unified hierarchy and below it, whenever
  // they come or go; or, kind EXCLUDE, for none of them. autoarm is left alone. `id`: the
  // directory's inode number.
  Status set_cgroup(uint64_t id, gpuprof_cgroup_rule rule);
  // Drops the records of this program of a process in BPF, whoever watches it, until it execs.
  // kUnavailable: max_processes are watched or excluded already.
  Status exclude(ProcessId process, uint32_t exec_id);
  // From now on poll() returns when a process has just made a shim's memfd and starts the shim's
  // thread, and take_sightings() has it: for shims whose file nobody has attached to. Needs
  // CAP_PERFMON.
  Status watch_memfds();
  // Since the last call; a number may come more than once, and some are missing in a flood.
  std::vector<uint32_t> take_sightings();

  // Waits until a ring is a quarter full or `timeout` has passed (a signal ends the wait early),
  // then drains both rings into the sink. Returns the number of ring entries read; a flood ends the
  // call after about 100 ms, so that the caller gets to do its own work.
  Result<uint64_t> poll(std::chrono::milliseconds timeout);

  // Drains the rings, then closes all reorder windows: what is missing is lost. For the end.
  void flush();
  // As flush(), without draining, for one process that has exited; drops its state.
  void forget(ProcessId process);

  [[nodiscard]] ProbeCounters counters() const;
  // What is in use, e.g. "uprobe_multi, sleepable, 5-byte nop, bpf_find_vma".
  [[nodiscard]] std::string describe() const;
  // Without uprobe_multi: CAP_SYS_ADMIN is then needed for every attach to come.
  [[nodiscard]] bool uses_perf_uprobes() const;

 private:
  struct Impl;
  explicit ProbeSession(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpuprof::probe

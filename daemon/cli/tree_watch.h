// SPDX-License-Identifier: Apache-2.0
//
// TreeWatch: the processes of a run's trees that use CUDA and are not profiled, and why.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "daemon/base/process_id.h"
#include "daemon/cli/process_check.h"

namespace gpuprof::cli {

// Nothing tells of a process that runs CUDA without the shim, so the trees are looked at: every
// 0.5 s, or less often where that would take more than 1 % of a core. A process that lives
// shorter may be missed. Who was seen once is looked for again when its parents are gone. One
// thread; the findings are doctor's.
class TreeWatch {
 public:
  // Beyond these, processes are not remembered, and of findings those that ended are given up.
  static constexpr size_t kMostProcesses = 16 * 1024;
  static constexpr size_t kMostFindings = 1024;

  TreeWatch();

  // It and its descendants, those to come too.
  void add(ProcessId process);

  // Whose shim we control, or tried to: its state is known better elsewhere.
  using IsOurs = std::function<bool(ProcessId)>;
  // Where it is time: looks.
  void look(uint64_t now_ns, const IsOurs& is_ours);
  // At the end of the run, at once: at most 0.2 s.
  void look_last(const IsOurs& is_ours);

  // A process that may belong to no tree.
  void consider(ProcessId process) { look_at(process.process(), false); }

  // Findings that stand and were not taken yet: those that can be profiled by nobody now, with
  // the process's name in the line.
  std::vector<std::string> take_news();

  // The processes that use CUDA and are not ours, those that have ended too; in the order of their
  // ids.
  [[nodiscard]] std::vector<ProcessCheck> findings(const IsOurs& is_ours) const;
  // Findings given up.
  [[nodiscard]] uint64_t more() const { return more_; }

 private:
  // A process between two steps of its start looks broken: a finding stands once two looks agree,
  // or where it says all that it takes to be true.
  struct Finding {
    ProcessCheck check;
    bool stands = false;
    bool told = false;
    bool ended = false;
  };

  // `again`: findings that stand, too.
  void look_at_trees(const IsOurs& is_ours, bool again);
  void look_at(ProcessId process, bool again);
  void keep(ProcessId process, ProcessCheck check);
  [[nodiscard]] bool some_may_change() const;

  std::string kernel_module_;
  std::set<ProcessId> known_;  // living ones
  std::map<ProcessId, Finding> found_;
  uint64_t next_ns_ = 0;
  uint64_t checks_ns_ = 0;  // of the last look, CPU time of check_process()
  uint64_t more_ = 0;
};

}  // namespace gpuprof::cli

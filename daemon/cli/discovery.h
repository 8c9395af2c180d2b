// SPDX-License-Identifier: Apache-2.0
//
// Discovery: finds the shims of a node's processes, attaches to each file once, and arms who runs
// them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>

#include "daemon/base/process_id.h"
#include "daemon/cli/console.h"
#include "daemon/cli/session.h"
#include "daemon/target/node_scan.h"

namespace gpuprof::cli {

// A process with a known file needs no looking: it arms itself at its injection by the semaphore of
// `autoarm`, and process_v1 tells of it at once. So a look is for those that were there before us,
// and for files nobody has met yet: eBPF tells of a process that has made a shim's memfd, and where
// it cannot it is found at NodeScan's next listing. The first process of a new file is armed late.
// One thread; a tick takes a bounded time, however many processes there are. What it found is in
// Session::node().
class Discovery {
 public:
  Discovery(Session& session, Console& console);

  // After each of the session's.
  void tick();
  // Has every process that was there at the start been looked at?
  [[nodiscard]] bool looked_at_all() const { return looked_at_all_; }

 private:
  using FileKey = std::pair<dev_t, ino_t>;

  void look(uint32_t pid, uint64_t now_ns);
  void look_for_movers(uint64_t now_ns);
  bool attach(const target::ShimFile& file);
  void adopt(ProcessId process, bool new_file, uint64_t now_ns);

  Session& session_;
  Console& console_;
  target::NodeScan scan_;
  std::map<FileKey, uint64_t>
      files_;  // start_ticks of a process that would start as it was attached
  std::set<FileKey> failed_;
  std::set<std::string> told_;
  std::map<uint32_t, int> sighted_;  // looks to come, for a shim that is about to be mapped
  std::set<ProcessId> left_out_;     // with a shim, and not meant
  std::unordered_set<uint32_t> unreadable_;
  uint64_t next_movers_ns_ = 0;
  uint32_t self_;
  uint64_t started_ticks_;
  bool looked_at_all_ = false;
};

}  // namespace gpuprof::cli

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
#include <utility>

#include "daemon/base/process_id.h"
#include "daemon/cli/console.h"
#include "daemon/cli/session.h"
#include "daemon/target/node_scan.h"

namespace gpuprof::cli {

// What it did, for the summary.
struct DiscoveryCounts {
  uint64_t files = 0;      // shim files attached to
  uint64_t processes = 0;  // found with a shim, by looking
  // Of these, started after us, with a shim file that was unknown until then: what they did before
  // is missing.
  uint64_t late = 0;
  uint64_t unreadable = 0;  // looks that were not permitted
  uint64_t failed = 0;      // files that could not be attached to
};

// A process with a known file needs no looking: it arms itself at its injection by the semaphore of
// `autoarm`, and process_v1 tells of it at once. So a look is for those that were there before us,
// and for files nobody has met yet: these are found within NodeScan's interval, and their first
// process is armed late. One thread; a tick takes a bounded time, however many processes there are.
class Discovery {
 public:
  Discovery(Session& session, Console& console);

  // After each of the session's.
  void tick();
  // Has every process that was there at the start been looked at?
  [[nodiscard]] bool looked_at_all() const { return looked_at_all_; }
  [[nodiscard]] const DiscoveryCounts& counts() const { return counts_; }

 private:
  using FileKey = std::pair<dev_t, ino_t>;

  void look(uint32_t pid, uint64_t now_ns);
  bool attach(const target::ShimFile& file);
  void adopt(ProcessId process, uint64_t now_ns);

  Session& session_;
  Console& console_;
  target::NodeScan scan_;
  std::map<FileKey, uint64_t>
      files_;  // start_ticks of a process that would start as it was attached
  std::set<FileKey> failed_;
  std::set<std::string> told_;
  DiscoveryCounts counts_;
  uint32_t self_;
  uint64_t started_ticks_;
  bool looked_at_all_ = false;
};

}  // namespace gpuprof::cli

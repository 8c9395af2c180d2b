// SPDX-License-Identifier: Apache-2.0
//
// RunSoFar: what a run under --window has told before the window that is told now.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "daemon/base/process_id.h"
#include "daemon/cli/pc_report.h"
#include "daemon/join/accounting.h"
#include "daemon/join/assemble.h"
#include "daemon/join/joiner.h"

namespace gpuprof::cli {

class Session;

struct WindowSpan {
  uint64_t index = 0;         // from 1
  int64_t start_unix_ns = 0;  // CLOCK_REALTIME
  uint64_t duration_ns = 0;
};

// The windows that have ended: ended = written + empty + waiting + unwritten + those on their way.
struct WindowTally {
  uint64_t ended = 0;
  uint64_t written = 0;
  uint64_t empty = 0;      // no GPU work: no file
  uint64_t waiting = 0;    // could not be written, and are tried again
  uint64_t unwritten = 0;  // were given up
  uint64_t unwritten_executions = 0;
  uint64_t unwritten_gpu_time_ns = 0;
  uint64_t late = 0;  // ended after their time, since the ones before were not written yet
  uint64_t summaries_unwritten = 0;
  uint64_t longest_pause_ns = 0;  // between two drains of the rings while a window was ended
};

// A process that ended is told in the window in which it did, and afterwards in the sums alone.
struct RunSoFar {
  WindowSpan window;  // the one that is told
  WindowTally windows;
  join::AssembleStats of_window;  // its processes as JoinResult has them
  join::AssembleStats of_run;     // likewise, with the windows before

  uint64_t ended_processes = 0;
  uint64_t ended_stacks = 0;
  uint64_t ended_stacks_whole = 0;
  uint64_t ended_frames_guided = 0;  // by frame pointers
  join::Accounting ended;            // `emitted` is nothing where it is not known of one
  PcResult ended_pc;

  // Takes the next window's.
  void add_window(const join::JoinResult& result, const join::AssembleStats& assembled);
  // Of these no further window tells. Before Session::forget().
  void add_ended(const Session& session, const join::JoinResult& result,
                 const std::vector<ProcessId>& ended);

 private:
  std::map<ProcessId, join::SourceCounts> sources_;  // of processes that are alive
};

}  // namespace gpuprof::cli

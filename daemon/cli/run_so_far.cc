// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/run_so_far.h"

#include "daemon/cli/report.h"
#include "daemon/cli/session.h"

namespace gpuprof::cli {

void RunSoFar::add_window(const join::JoinResult& result, const join::AssembleStats& assembled) {
  of_window = assembled;
  const uint64_t suppressed = of_run.labels_suppressed;
  of_run = assembled;
  of_run.labels_suppressed += suppressed;
  for (size_t i = 0; i < result.processes.size() && i < of_run.sources.size(); ++i) {
    join::SourceCounts& sum = sources_[result.processes[i].process];
    sum += of_run.sources[i];
    of_run.sources[i] = sum;
  }
}

void RunSoFar::add_ended(const Session& session, const join::JoinResult& result,
                         const std::vector<ProcessId>& ended_now) {
  const std::map<ProcessId, ProcessRecord>& records = session.recorder().processes();
  for (const ProcessId id : ended_now) {
    if (const auto it = records.find(id); it != records.end()) {
      ended_stacks += it->second.stacks_taken;
      ended_frames_guided += it->second.frames_by_frame_pointer;
      ended_stacks_whole += it->second.stack_ends[static_cast<size_t>(unwind::StackEnd::kWhole)];
    }
    for (const join::ProcessResult& process : result.processes) {
      if (process.process != id) continue;
      // Of nothing the sum is known.
      const bool known = ended_processes == 0 || ended.emitted;
      const bool pc_known = ended_processes == 0 || ended.pc.emitted;
      ended += process.lifetime;
      if (!known || !process.lifetime.emitted) ended.emitted.reset();
      if (!pc_known || !process.lifetime.pc.emitted) ended.pc.emitted.reset();
      ended_pc += pc_result(session, result, id, of_run);
      ended_pc.accounting.emitted = ended.pc.emitted;
      ++ended_processes;
    }
    sources_.erase(id);
  }
}

}  // namespace gpuprof::cli

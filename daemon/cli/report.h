// SPDX-License-Identifier: Apache-2.0
//
// What a run tells at its end: the summary for people and the accounting as JSON.
#pragma once

#include <string>

#include "daemon/cli/pc_report.h"
#include "daemon/cli/run_so_far.h"
#include "daemon/cli/session.h"
#include "daemon/join/joiner.h"
#include "daemon/join/model.h"

namespace gpuprof::cli {

// A few lines for stderr: file, GPU time, executions, how sure the attribution is, what was lost.
// `written` empty: no file was written. `run` null: there is one window; else `result` is the last
// one's and `assembled` is run->of_run.
std::string human_summary(const Session& session, const join::JoinResult& result,
                          const std::string& written, const join::AssembleStats& assembled,
                          const RunSoFar* run = nullptr);

// The accounting identity per target, design section 9. With `run` for the window and for the run.
std::string json_summary(const Session& session, const join::JoinResult& result,
                         const std::string& written, const join::AssembleStats& assembled,
                         const RunSoFar* run = nullptr);

// A summary that was made with `written` empty, and the path that its profile got since.
std::string name_profile(std::string summary, const std::string& path);

// Lines for Model::comments: version, attach mode, targets, gaps, losses.
std::vector<std::string> profile_comments(const Session& session, const join::JoinResult& result);

// The sum over all processes, of the run and of the window alone.
join::Accounting total_accounting(const join::JoinResult& result, const RunSoFar* run = nullptr);
join::Accounting window_accounting(const join::JoinResult& result);

// Of one process, in the run; one that sent nothing has modules only.
PcResult pc_result(const Session& session, const join::JoinResult& result, ProcessId id,
                   const join::AssembleStats& assembled);

// Time between the injection of a child and the moment its shim traced: what ran then is missing.
uint64_t gap_ns(const Controlled& target, const ProcessRecord* record);

}  // namespace gpuprof::cli

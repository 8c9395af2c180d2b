// SPDX-License-Identifier: Apache-2.0
//
// What a run tells at its end: the summary for people and the accounting as JSON.
#pragma once

#include <string>

#include "daemon/cli/session.h"
#include "daemon/join/joiner.h"
#include "daemon/join/model.h"

namespace gpuprof::cli {

// A few lines for stderr: file, GPU time, executions, how sure the attribution is, what was lost.
// `written` empty: no file was written.
std::string human_summary(const Session& session, const join::JoinResult& result,
                          const std::string& written, const join::AssembleStats& assembled);

// The accounting identity per target, design section 9.
std::string json_summary(const Session& session, const join::JoinResult& result,
                         const std::string& written, const join::AssembleStats& assembled);

// Lines for Model::comments: version, attach mode, targets, gaps, losses.
std::vector<std::string> profile_comments(const Session& session, const join::JoinResult& result);

// The sum over all processes.
join::Accounting total_accounting(const join::JoinResult& result);

// Time between the injection of a child and the moment its shim traced: what ran then is missing.
uint64_t gap_ns(const Controlled& target, const ProcessRecord* record);

}  // namespace gpuprof::cli

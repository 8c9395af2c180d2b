// SPDX-License-Identifier: Apache-2.0
//
// The table at the end of a run: what became of each process of it, in doctor's words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "daemon/cli/console.h"
#include "daemon/cli/json_writer.h"
#include "daemon/cli/process_check.h"
#include "daemon/cli/session.h"
#include "daemon/join/joiner.h"

namespace gpuprof::cli {

// A program that was profiled, or that uses CUDA and was not.
struct TargetRow {
  ProcessCheck check;  // its finding is of this run
  uint64_t executions = 0;
  bool is_minor = false;  // nothing is amiss that somebody could mend
};

// Of a session that has finished. Those that could not be profiled come first, then by executions;
// programs that started as others of one process are rows of their own.
std::vector<TargetRow> target_rows(const Session& session, const join::JoinResult& result);

inline constexpr size_t kMostTableRows = 20;
inline constexpr size_t kMostJsonRows = 1000;

// As doctor prints it, at most kMostTableRows, and how many more of which state there are.
std::string target_table(const std::vector<TargetRow>& rows, uint64_t not_looked_at);

// The table where nothing was profiled, unless the one line that says why has it all.
void tell_targets(const Session& session, const join::JoinResult& result, Console& console);

// Members `processes` and `processes_left_out` of an open object.
void write_targets(JsonWriter& json, const std::vector<TargetRow>& rows, uint64_t not_looked_at);

}  // namespace gpuprof::cli

// SPDX-License-Identifier: Apache-2.0
//
// What doctor found, as text and as JSON (docs/doctor.md).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "daemon/cli/json_writer.h"
#include "daemon/cli/process_check.h"

namespace gpuprof::cli {

enum class Versions { kShown, kNone };

// A row a process, what it runs on where that is asked for, and its warnings below it, with a head.
std::string process_table(std::span<const ProcessCheck> processes,
                          Versions versions = Versions::kShown);

// One array of objects.
void write_processes(JsonWriter& json, std::span<const ProcessCheck> processes);

}  // namespace gpuprof::cli

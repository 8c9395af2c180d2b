// SPDX-License-Identifier: Apache-2.0
//
// Parts of the report that need no session.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "daemon/cli/json_writer.h"
#include "daemon/join/accounting.h"
#include "daemon/join/joiner.h"
#include "daemon/probe/probe_session.h"

namespace gpuprof::cli {

// "1,234,567".
std::string grouped(uint64_t number);
// "12.5 %".
std::string percent(uint64_t part, uint64_t whole);

// Names of the JSON's keys: the enums' own words.
const char* drop_name(uint32_t drop_class);  // below GPUPROF_DROP_CLASS_COUNT

// One object: records that a ring lost, by probe::LossReason; at least kLossReasonCount of them.
void write_losses(JsonWriter& json, std::span<const uint64_t> by_reason);

// The members executions, gpu_time_ns and identity_holds of an open object. `produced` is null
// where the shim's own count is unknown (it was killed before we looked, or still runs), and
// identity_holds too, unless what arrived contradicts itself.
void write_accounting(JsonWriter& json, const join::Accounting& account);

// One object: what became of the rings' records, and every counter of the BPF programs.
void write_rings(JsonWriter& json, const probe::ProbeCounters& counters);

// Members of an open object: what the joiner did, of all processes.
void write_join(JsonWriter& json, const join::JoinStats& stats);

// Executions that shared their launch's id with another one, in one line; empty: none.
std::string not_exact(const join::JoinStats& stats);

// Whose GPU work may be missing, in one line; empty: nobody's.
std::string not_seen(const probe::ProbeCounters& counters);

}  // namespace gpuprof::cli

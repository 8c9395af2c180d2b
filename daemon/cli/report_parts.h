// SPDX-License-Identifier: Apache-2.0
//
// Parts of the report that need no session.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "daemon/cli/debug_fetcher.h"
#include "daemon/cli/json_writer.h"
#include "daemon/cli/process_record.h"
#include "daemon/join/accounting.h"
#include "daemon/join/joiner.h"
#include "daemon/probe/probe_session.h"
#include "daemon/symbolize/symbol_counts.h"
#include "daemon/target/cuda_driver.h"

namespace gpuprof::cli {

// "1,234,567".
std::string grouped(uint64_t number);
// "12.5 %".
std::string percent(uint64_t part, uint64_t whole);

// Names of the JSON's keys: the enums' own words.
const char* drop_name(uint32_t drop_class);  // below GPUPROF_DROP_CLASS_COUNT

// The Python frames of a process, nothing where it runs none.
void write_python(JsonWriter& json, const ProcessRecord& record);

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

// One object: what names and lines were taken from, and what stood in the way; `fetcher` may be
// null.
void write_symbols(JsonWriter& json, const symbolize::SymbolCounts& counts, DebugFetcher* fetcher);

// One object: the libcuda that a process ran on, and the kernel module.
void write_cuda_driver(JsonWriter& json, const target::CudaDriver& driver);

// The libcuda of each process, in one line for those that have the same one: "processes 12 and 3
// more: CUDA 13.0 by ...". In the order of the first process of each.
class CudaDriverLines {
 public:
  void add(uint32_t pid, const target::CudaDriver& driver);
  [[nodiscard]] std::vector<std::string> lines() const;

 private:
  struct Line {
    std::string text;
    uint32_t first_pid = 0;
    uint64_t processes = 0;
  };
  std::vector<Line> lines_;
};

// Executions that shared their launch's id with another one, in one line; empty: none.
std::string not_exact(const join::JoinStats& stats);

// How many stacks there are and how good they are, in one line: `whole` reached the outermost
// frame, `guided` are frames (of all stacks) that only a frame pointer told.
std::string stacks_text(uint64_t taken, uint64_t whole, uint64_t guided);

// Whose GPU work may be missing, in one line; empty: nobody's.
std::string not_seen(const probe::ProbeCounters& counters);

}  // namespace gpuprof::cli

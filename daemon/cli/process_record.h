// SPDX-License-Identifier: Apache-2.0
//
// ProcessRecord: everything the recorder knows about one process.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/base/process_id.h"
#include "daemon/python/interpreter.h"
#include "daemon/symbolize/symbolizer.h"
#include "daemon/target/identity.h"
#include "daemon/unwind/address_space.h"
#include "daemon/unwind/stack.h"
#include "daemon/unwind/unwinder.h"
#include "proto/usdt_abi.h"

namespace gpuprof::cli {

// Totals of the shim at the moment we began to listen: what we compare later totals with.
struct ShimBaseline {
  std::array<uint64_t, GPUPROF_PROBE_COUNT> emitted{};
  std::array<uint64_t, GPUPROF_DROP_CLASS_COUNT> drops{};
};

// What lay where while some of the stacks were taken.
struct Layout {
  std::shared_ptr<unwind::AddressSpace> space;
  std::unique_ptr<symbolize::Symbolizer> symbolizer;
  std::unique_ptr<python::Interpreter> python;           // null: none, or python_error says why not
  std::unordered_map<std::string, uint64_t> thread_pcs;  // of their root frames, by name
  std::vector<uint32_t> module_of;  // its module's index -> index in ProcessRecord::modules
};

// One program of one process. Kept after the process exited, until the profile is written: its
// address spaces hold the mapped files open, so its stacks are still symbolised.
struct ProcessRecord {
  ProcessId id;  // with the image
  std::string comm;
  std::string executable;
  target::Identity identity;
  // The last is the present one; a new one begins when a library is unmapped and another one is
  // mapped in its place. None: the process was gone before we looked.
  std::vector<Layout> layouts;
  std::unique_ptr<unwind::Unwinder> unwinder;  // of the last layout
  std::vector<symbolize::Module> modules;      // of all layouts, where there are several
  std::string space_error;
  std::string python_error;     // an interpreter is there whose frames cannot be read
  uint32_t python_version = 0;  // major << 8 | minor; 0: none was found
  python::PythonCounts python;
  uint64_t python_looked_at = 0;  // generation of the space that was searched for one
  uint64_t opened_ns = 0;         // CLOCK_MONOTONIC
  uint64_t refreshed_ns = 0;
  bool stacks_since_refresh = false;

  std::unordered_map<uint64_t, std::string> kernel_names;
  std::unordered_map<uint64_t, std::string> stall_names;  // by device id << 32 | stall index
  std::unordered_map<uint32_t, std::string> thread_names;
  std::map<uint32_t, gpuprof_device_v1> devices;
  std::map<uint32_t, uint64_t> busy_until_ns;  // by device: end of the last execution counted

  std::array<uint64_t, unwind::kStackEndCount> stack_ends{};
  uint64_t stacks_taken = 0;             // launch records
  uint64_t stacks_refused = 0;           // unwound, but the stack table was full
  uint64_t frames_by_frame_pointer = 0;  // of all stacks, as RawStack counts them
  uint64_t executions = 0;
  uint64_t gpu_time_ns = 0;
  uint64_t busy_ns = 0;        // union of execution intervals, over all devices
  uint64_t names_refused = 0;  // over the bound
  std::array<std::array<uint64_t, 5>, GPUPROF_PROBE_COUNT> lost{};  // [probe][probe::LossReason]

  ShimBaseline baseline;
  std::array<uint64_t, GPUPROF_DROP_CLASS_COUNT> drops{};  // latest totals less the baseline
  std::array<uint64_t, GPUPROF_PROBE_COUNT> emitted{};     // likewise
  bool emitted_known = false;
  // Totals that cannot be true and are left out: a bit for each probe, and for each class of drops.
  uint32_t implausible_emitted = 0;
  uint64_t implausible_drops = 0;
  uint64_t injected_ns = 0;  // CLOCK_MONOTONIC of process_v1, 0: it was there before us
  bool exited = false;       // and the rings were drained
};

}  // namespace gpuprof::cli

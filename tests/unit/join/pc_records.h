// SPDX-License-Identifier: Apache-2.0
//
// PC samples and sampling windows as a shim would emit them, and a DeviceSource over tables.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "daemon/join/device_source.h"
#include "tests/unit/join/records.h"

namespace gpuprof::join::testing {

// Counters by index, as a device tells them.
inline constexpr uint32_t kWait = 0, kWaitNotIssued = 1, kLong = 2, kLongNotIssued = 3,
                          kSampleCount = 4, kDropped = 5, kNoSuchStall = 99;

class FakeDevice : public DeviceSource {
 public:
  const DeviceModule& device_module(ProcessId process, uint64_t cubin_key) override {
    return modules_[{process, cubin_key}];
  }
  // Of devices 0 and 1.
  std::string_view stall_name(ProcessId, uint32_t device_id, uint32_t stall_index) override {
    if (device_id > 1) return {};
    static constexpr std::string_view kNames[] = {
        "smsp__pcsamp_warps_issue_stalled_wait",
        "smsp__pcsamp_warps_issue_stalled_wait_not_issued",
        "smsp__pcsamp_warps_issue_stalled_long_scoreboard",
        "smsp__pcsamp_warps_issue_stalled_long_scoreboard_not_issued",
        "smsp__pcsamp_sample_count",
        "smsp__pcsamp_samples_data_dropped",
    };
    return stall_index < std::size(kNames) ? kNames[stall_index] : std::string_view();
  }
  DeviceModule& operator[](std::pair<ProcessId, uint64_t> key) { return modules_[key]; }

 private:
  std::map<std::pair<ProcessId, uint64_t>, DeviceModule> modules_;
};

inline constexpr uint64_t kCubin = 0xc0b1;

// Of a kernel on device 0, context 1, as exec() makes them.
inline gpuprof_pc_sample_v1 pc_sample(uint64_t function, uint32_t pc, uint32_t samples,
                                      uint32_t stall = kWait, uint32_t correlation = 0,
                                      uint32_t epoch = 1) {
  gpuprof_pc_sample_v1 record{};
  record.cubin_key = kCubin;
  record.function_name_id = function;
  record.window_id = 1;
  record.pc_offset = pc;
  record.stall_index = stall;
  record.samples = samples;
  record.correlation = correlation;
  record.epoch = correlation == 0 ? 0 : epoch;
  record.context_id = 1;
  return record;
}

inline void add(Joiner& joiner, const gpuprof_pc_sample_v1& record, ProcessId process = kProcess) {
  joiner.add_pc_samples(process, std::span(&record, 1));
}

inline gpuprof_window_v1 window(uint32_t event, uint64_t id, uint64_t time_ns, uint32_t mode = 1,
                                uint32_t context = 1) {
  gpuprof_window_v1 record{};
  record.window_id = id;
  record.time_ns = time_ns;
  record.event = event;
  record.mode = mode;
  record.context_id = context;
  record.period = 10;
  return record;
}

}  // namespace gpuprof::join::testing

// SPDX-License-Identifier: Apache-2.0
// ProbeTap: sees what the real shim emits, in process, without eBPF or privilege. It raises the
// semaphores of the loaded shim and overwrites each site with a jump to a recorder that copies the
// records. Sites and semaphores come from the file's own .note.stapsdt.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "proto/usdt_abi.h"

namespace gpuprof::testing {

struct Firing {
  gpuprof_probe probe;
  uint32_t count;
  uint64_t seq;
  int tid;
  std::vector<char> bytes;
};

class ProbeTap {
 public:
  /// Taps the shim at `path`, loading it if it is not loaded yet. Exits the process on failure: a
  /// tap that does not work must not look like a shim that is silent.
  static void install(const char* path);

  /// Semaphores of all probes but autoarm to `value`.
  static void attach(uint16_t value = 1);
  static void set_semaphore(gpuprof_probe probe, uint16_t value);

  static std::vector<Firing> firings();
  static void clear();
  /// Records of one probe, in order of firing.
  template <typename Record>
  static std::vector<Record> records(gpuprof_probe probe) {
    std::vector<Record> all;
    for (const Firing& firing : firings()) {
      if (firing.probe != probe) continue;
      for (uint32_t i = 0; i < firing.count; ++i) {
        Record record;
        memcpy(&record, firing.bytes.data() + i * sizeof record, sizeof record);
        all.push_back(record);
      }
    }
    return all;
  }
  static std::vector<gpuprof_exec_v1> execs() {
    return records<gpuprof_exec_v1>(GPUPROF_PROBE_EXEC);
  }
  static std::vector<gpuprof_launch_v1> launches() {
    return records<gpuprof_launch_v1>(GPUPROF_PROBE_LAUNCH);
  }
  /// Latest total of a drop class that was emitted, 0 if none.
  static uint64_t drop(gpuprof_drop_class drop_class);
};

}  // namespace gpuprof::testing

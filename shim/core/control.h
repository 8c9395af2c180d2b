// SPDX-License-Identifier: Apache-2.0
//
// The control page as the shim reads it. Whoever can open the memfd can write it at any moment, so
// it is copied under its seqlock with a bounded number of tries and validated as a whole: a value
// that we do not know means "off".
#pragma once

#include <cstdint>

#include "proto/memfd_layout.h"

namespace gpuprof::shim {

// The GPUs that this process may PC-sample (docs/adr/0020); none by default.
struct PcGrant {
  bool all = false;
  uint32_t count = 0;
  uint64_t serial = 0;  // the controller's number of it
  gpuprof_gpu_uuid gpus[GPUPROF_PC_GPUS_MAX] = {};

  [[nodiscard]] bool covers(const uint8_t (&uuid)[16]) const;
  friend bool operator==(const PcGrant& a, const PcGrant& b);
};

struct ControlRequest {
  gpuprof_tier tier = GPUPROF_TIER_OFF;
  uint32_t pc_period = 0;      // log2 cycles 5..31, 0 default
  uint32_t pc_duty = 0;        // per mille of the time, 0 default
  uint32_t stack_rate = 0;     // a second and thread; 0 default, UINT32_MAX every launch
  uint32_t process_rate = 0;   // a second and process; 0 default, UINT32_MAX no limit
  uint64_t process_bytes = 0;  // stack bytes a second and process; 0 default
  uint64_t lease_serial = 0;
  uint32_t lease_ms = 0;
  uint32_t controller_pid = 0;
  uint64_t sampler_seed = 0;
  char controller_name[64] = {};  // NUL-terminated, printable
  PcGrant pc_grant;
};

enum class ControlRead : uint8_t {
  kAbsent,   // never written (no magic)
  kValid,    // *out holds a request; tier may be off
  kInvalid,  // stable but not acceptable: off
  kTorn,     // a writer was at it every time: keep what is, its lease runs on
};

// One thread (the service thread); reads shared memory only. `page` may be null (kAbsent).
ControlRead read_control(const gpuprof_control_page* page, ControlRequest* out);

}  // namespace gpuprof::shim

// SPDX-License-Identifier: Apache-2.0
//
// DeviceSource: what assembling a profile asks about code on the GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "daemon/base/process_id.h"
#include "daemon/cubin/image.h"

namespace gpuprof::join {

struct DeviceModule {
  std::shared_ptr<const cubin::Image> image;  // null: no-module, and `missing` says why
  std::string sha256;                         // of the image, lower-case hexadecimal
  // target::module_failure_name()'s, "too-many-keys", "evicted", "malformed"
  std::string missing;
};

class DeviceSource {
 public:
  virtual ~DeviceSource() = default;

  // The module that this process loaded under `cubin_key` (gpuprof_pc_sample_v1), only ever from
  // images read from that process itself. The reference stays valid until the next call.
  virtual const DeviceModule& device_module(ProcessId process, uint64_t cubin_key) = 0;
  // CUPTI's name of a stall reason ("smsp__pcsamp_warps_issue_stalled_wait"); empty if it did not
  // arrive.
  virtual std::string_view stall_name(ProcessId process, uint32_t device_id,
                                      uint32_t stall_index) = 0;
};

}  // namespace gpuprof::join

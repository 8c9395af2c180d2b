// SPDX-License-Identifier: Apache-2.0
//
// DeviceCode: sampled instructions as the model's locations, one module a cubin.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "daemon/base/process_id.h"
#include "daemon/cubin/image.h"
#include "daemon/join/assemble.h"
#include "daemon/join/device_source.h"
#include "daemon/join/flat_index.h"
#include "daemon/join/gpu_functions.h"
#include "daemon/join/model.h"

namespace gpuprof::join {

// Processes with the same image share its module. Borrows all that it is given.
class DeviceCode {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Place {
    cubin::SourceStatus status = cubin::SourceStatus::kNoModule;
    uint32_t location = kNone;   // none: no more than the kernel is known
    uint32_t outermost = kNone;  // function of the location's last line
    uint32_t missing = 0;        // 1 + index of missing(), 0: nothing to say
  };

  DeviceCode(const std::vector<ProcessId>& processes, FrameSource& frames, DeviceSource* device,
             GpuFunctions& functions, Model& model)
      : processes_(processes),
        frames_(frames),
        device_(device),
        functions_(functions),
        model_(model) {}

  // `process` is an index into the processes, `kernel_name_id` the kernel that it ran in, 0:
  // unknown.
  const Place& find(uint32_t process, uint64_t cubin_key, uint64_t function_name_id,
                    uint64_t kernel_name_id, uint32_t pc_offset);
  // Why a module is missing.
  [[nodiscard]] const std::string& missing(const Place& place) const {
    return missing_[place.missing - 1];
  }

 private:
  struct Key {
    uint64_t cubin_key, function_name_id, kernel_name_id;
    uint32_t process, pc_offset;
  };
  // Where instructions of several functions have one address (a function with two names) or none
  // that is known, the functions tell them apart.
  struct LocationKey {
    uint64_t module, address, functions;
  };
  struct AddressKey {
    uint64_t module, address;
  };

  Place make(const Key& key);
  uint32_t missing_id(const std::string& reason);
  uint32_t module_of(const DeviceModule& module);
  uint64_t address_of(uint32_t module, uint64_t address);
  uint32_t location_of(uint32_t module, const cubin::Image& image,
                       const cubin::Resolution& resolution);

  const std::vector<ProcessId>& processes_;
  FrameSource& frames_;
  DeviceSource* device_;
  GpuFunctions& functions_;
  Model& model_;
  FlatIndex<Key, Place> places_;
  FlatIndex<LocationKey, uint32_t> locations_;
  FlatIndex<AddressKey, uint8_t> addresses_;  // that are taken
  std::map<std::string, uint32_t> modules_;   // by sha256
  std::vector<std::string> missing_;
};

}  // namespace gpuprof::join

// SPDX-License-Identifier: Apache-2.0
// CUDA_VISIBLE_DEVICES: which GPU of the machine each device of this process is.
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/fake_cuda/driver/state.h"

namespace fakecuda {
namespace {

/// As the CUDA programming guide has it: indices in any order, devices are numbered in that order,
/// and those behind the first one that is no GPU's do not count. (UUIDs are not taken here.)
std::vector<uint64_t> read_variable() {
  const uint64_t gpus = setting(Key::kDevices);
  std::vector<uint64_t> out;
  const char* text = getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr) {
    for (uint64_t gpu = 0; gpu < gpus; ++gpu) out.push_back(gpu);
    return out;
  }
  while (*text != 0) {
    char* end = nullptr;
    const long index = strtol(text, &end, 10);
    if (end == text || index < 0 || static_cast<uint64_t>(index) >= gpus) break;
    out.push_back(static_cast<uint64_t>(index));
    text = *end == ',' ? end + 1 : end;
  }
  return out;
}

/// Read once, with the first call, as the driver reads it at cuInit.
const std::vector<uint64_t>& visible() {
  static const auto* gpus = new std::vector<uint64_t>(read_variable());
  return *gpus;
}

}  // namespace

uint64_t device_count() { return visible().size(); }

uint64_t gpu_of(uint32_t device) {
  const auto& gpus = visible();
  return setting(Key::kFirstGpu) + (device < gpus.size() ? gpus[device] : device);
}

}  // namespace fakecuda

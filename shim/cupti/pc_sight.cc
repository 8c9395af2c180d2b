// SPDX-License-Identifier: Apache-2.0
#include "shim/cupti/pc_sight.h"

#include <cstring>

namespace gpuprof::cupti {
namespace {

// Anywhere in the name: they are C++ functions, some in namespaces.
constexpr const char* kCollectiveNames[] = {
    // NCCL: ncclKernel before 2.19, ncclDevKernel, from 2.27 on ncclSymDevKernel, ncclSymkDevKernel
    "nccl",
    "nvshmem",
    "cross_device_reduce",  // vLLM's and SGLang's all-reduce
    "shot_all_reduce",      // one_ and two_: PyTorch's symmetric memory
    "multimem_",
    "mscclpp",
    "deep_ep",
};

/// cuLaunchKernelEx's attribute list, which is how newer callers say "cooperative".
bool has_cooperative_attribute(const void* params) noexcept {
  if (params == nullptr) return false;
  const auto* config = *static_cast<const CUlaunchConfig* const*>(params);
  if (config == nullptr || config->attrs == nullptr) return false;
  for (unsigned int i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config->attrs[i];
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && attribute.value.cooperative != 0) {
      return true;
    }
  }
  return false;
}

bool is_cooperative(Domain domain, uint32_t id, const void* params) noexcept {
  if (domain == Domain::kDriver) {
    switch (id) {
      case 477:  // cuLaunchCooperativeKernel, _ptsz, MultiDevice
      case 478:
      case 480:
        return true;
      case 652:  // cuLaunchKernelEx, _ptsz
      case 653:
        return has_cooperative_attribute(params);
      default:
        return false;
    }
  }
  return id == 269 || id == 270 || id == 272;  // cudaLaunchCooperativeKernel, _ptsz, MultiDevice
}

}  // namespace

bool is_collective(const char* name) noexcept {
  if (name == nullptr) return false;
  for (const char* part : kCollectiveNames) {
    if (strstr(name, part) != nullptr) return true;
  }
  return false;
}

uint32_t sight_of_launch(Domain domain, uint32_t id, Call call,
                         const CUpti_CallbackData& data) noexcept {
  if (call == Call::kGraph) return kSawGraph;
  if (call != Call::kKernel) return 0;
  if (is_collective(data.symbolName)) return kSawCollective;
  return is_cooperative(domain, id, data.functionParams) ? uint32_t{kSawCooperative} : 0;
}

uint32_t sight_of_kernel(uint8_t launch_type, uint32_t graph_id) noexcept {
  // CUpti_ActivityLaunchType: 0 regular, 1 cooperative on one device, 2 on several.
  return (graph_id != 0 ? uint32_t{kSawGraph} : 0) |
         (launch_type != 0 ? uint32_t{kSawCooperative} : 0);
}

}  // namespace gpuprof::cupti

// SPDX-License-Identifier: Apache-2.0
#include "daemon/doctor/cupti_users.h"

#include <algorithm>
#include <string_view>

namespace gpuprof::doctor {
namespace {

struct User {
  std::string_view file;  // the beginning of its library's name
  const char* tool;
};
constexpr User kUsers[] = {
    {"libToolsInjection", "Nsight Systems"},
    {"libnvperf_target", "Nsight Compute"},
    {"libTreeLauncher", "Nsight Compute"},
    {"libproton", "Triton's Proton"},
    {"libtorch_cpu.", "torch.profiler"},
    {"libtensorflow_framework", "TensorFlow's profiler"},
    {"xla_extension", "JAX's profiler"},
    {"libscorep", "Score-P"},
    {"libTAU", "TAU"},
    {"libhpcrun", "HPCToolkit"},
};

// cuptiGetVersion() of the releases before 13.0, from 18 on; two share a number.
constexpr const char* kReleases[] = {"11.8", "12.0", "12.2", "12.3", "12.4", "12.5",
                                     "12.6", "12.6", "12.8", "12.8", "12.9"};

uint32_t major_of(uint32_t cupti) {
  if (cupti >= 100'000) return cupti / 10'000;
  return cupti <= 18 ? 11 : 12;
}

}  // namespace

std::vector<std::string> cupti_users(const std::vector<target::Mapping>& mappings) {
  std::vector<std::string> out;
  for (const target::Mapping& mapping : mappings) {
    for (const User& user : kUsers) {
      if (mapping.file_name().starts_with(user.file) &&
          std::ranges::find(out, user.tool) == out.end())
        out.emplace_back(user.tool);
    }
  }
  return out;
}

std::string cupti_version_text(uint32_t cupti) {
  if (cupti >= 100'000)
    return std::to_string(cupti / 10'000) + "." + std::to_string(cupti / 100 % 100);
  if (cupti >= 18 && cupti < 18 + std::size(kReleases)) return kReleases[cupti - 18];
  return "API " + std::to_string(cupti);
}

std::vector<CuptiLimit> cupti_limits(uint32_t cupti, uint32_t driver) {
  std::vector<CuptiLimit> out;
  if (cupti == 0) return out;
  const std::string which = "CUPTI " + cupti_version_text(cupti);
  if (driver != 0 && major_of(cupti) > driver / 1000)
    out.push_back({"newer-than-driver", which + " is newer than the driver, which is for CUDA " +
                                            std::to_string(driver / 1000) +
                                            ", and cannot work on it: set "
                                            "GPU_PROFILED_CUPTI_PATH to one of CUDA " +
                                            std::to_string(driver / 1000)});
  if (cupti / 100 == 1302)
    out.push_back({"may-crash", which +
                                    " ends a process whose driver it cannot start on: use 13.3 or "
                                    "13.1 (GPU_PROFILED_CUPTI_PATH)"});
  if (cupti >= 19 && cupti <= 25)
    out.push_back({"no-disarm", which +
                                    " may deadlock when tracing is switched off, so the process "
                                    "stays armed once it was armed: use 12.8 or newer "
                                    "(GPU_PROFILED_CUPTI_PATH)"});
  if (cupti == 18 && (driver == 0 || driver >= 12'000))
    out.push_back({"runtime-only", which +
                                       " on a newer driver tells only of launches through the CUDA "
                                       "runtime, not of those by cuLaunchKernel (Triton): use 12.8 "
                                       "or newer (GPU_PROFILED_CUPTI_PATH)"});
  if (cupti < 27)
    out.push_back({"no-pc-sampling", which +
                                         " cannot sample instructions (--pc-sampling): use 12.9 or "
                                         "newer (GPU_PROFILED_CUPTI_PATH)"});
  return out;
}

}  // namespace gpuprof::doctor

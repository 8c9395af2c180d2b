// SPDX-License-Identifier: Apache-2.0
#include "shim/cupti/pc_reason.h"

#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "shim/core/self.h"

namespace gpuprof::cupti {
namespace {

struct Answer {
  int result;  // CUptiResult; the names of the newer ones are not in every header
  gpuprof_pc_reason reason;
  bool heals;
  const char* advice;
};

constexpr char kBusyAdvice[] =
    "another profiler holds the GPU's counters, and one process at a time can sample a GPU: end "
    "the debugger, Nsight or ncu session, or pause DCGM's profiling (dcgmi profile --pause)";

constexpr Answer kAnswers[] = {
    {8, GPUPROF_PC_REASON_OUT_OF_MEMORY, true,
     "no memory for the sampling buffer (128 MiB of device-visible memory); tried again"},
    {9, GPUPROF_PC_REASON_COUNTERS_BUSY, true, kBusyAdvice},  // HARDWARE
    {12, GPUPROF_PC_REASON_FAILED,
     true,  // MAX_LIMIT_REACHED, ours where there are no stall reasons
     "CUPTI found no libnvperf_host.so, which PC sampling needs: put the one of its release beside "
     "libcupti (the toolkit and pip's nvidia-cuda-cupti have it); tried again"},
    {14, GPUPROF_PC_REASON_COUNTERS_BUSY, true, kBusyAdvice},  // NOT_COMPATIBLE
    {26, GPUPROF_PC_REASON_COUNTERS_BUSY, true, kBusyAdvice},  // HARDWARE_BUSY
    {33, GPUPROF_PC_REASON_VGPU, false,
     "virtual GPUs offer PC sampling only where the host's vGPU configuration enables profiling"},
    {35, GPUPROF_PC_REASON_PRIVILEGE, false,
     "load the kernel module with NVreg_RestrictProfilingToAdminUsers=0, or give the profiled "
     "process CAP_SYS_ADMIN (for a container: --cap-add SYS_ADMIN)"},
    {36, GPUPROF_PC_REASON_COUNTERS_BUSY, true, kBusyAdvice},  // OLD_PROFILER_API_INITIALIZED
    {38, GPUPROF_PC_REASON_GPU_TOO_OLD, false,
     "PC sampling needs compute capability 7.0 (7.5 from CUDA 13 on)"},
    {39, GPUPROF_PC_REASON_COUNTERS_BUSY, true, kBusyAdvice},  // MULTIPLE_SUBSCRIBERS
    {40, GPUPROF_PC_REASON_VGPU, false,
     "the host's vGPU configuration does not enable profiling for this virtual machine"},
    {41, GPUPROF_PC_REASON_CONFIDENTIAL, false,
     "PC sampling is not possible in confidential-computing mode"},
    {43, GPUPROF_PC_REASON_MIG, false, "PC sampling is not possible on this MIG instance"},
    {45, GPUPROF_PC_REASON_WSL, false, "PC sampling is not possible in this WSL"},
};

const Answer* find(CUptiResult result) noexcept {
  for (const Answer& answer : kAnswers) {
    if (answer.result == static_cast<int>(result)) return &answer;
  }
  return nullptr;
}

/// "RmProfilingAdminOnly: 1" in /proc/driver/nvidia/params.
int read_admin_only() noexcept {
  char text[4096];
  if (shim::read_small_file("/proc/driver/nvidia/params", text, sizeof text) <= 0) return -1;
  const char* line = strstr(text, "RmProfilingAdminOnly:");
  return line == nullptr ? -1 : atoi(line + strlen("RmProfilingAdminOnly:"));
}

/// A process is a client of MPS where the daemon's pipe is.
bool has_mps_pipe() noexcept {
  const char* directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
  char path[512];
  snprintf(path, sizeof path, "%s/control",
           directory == nullptr || directory[0] == '\0' ? "/tmp/nvidia-mps" : directory);
  return access(path, F_OK) == 0;
}

}  // namespace

PcSurroundings read_surroundings() noexcept {
  PcSurroundings around;
  around.mps = has_mps_pipe();
  around.admin_only = read_admin_only();
  return around;
}

void refuse(PcRefusal* refusal, gpuprof_pc_reason reason, bool heals, const char* format,
            ...) noexcept {
  refusal->reason = reason;
  refusal->heals = heals;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(refusal->text, sizeof refusal->text, format, arguments);
  va_end(arguments);
}

void explain(const char* step, CUptiResult result, const char* meaning,
             const PcSurroundings& around, PcRefusal* refusal) noexcept {
  if (const Answer* answer = find(result)) {
    char admin[48] = "";
    if (answer->reason == GPUPROF_PC_REASON_PRIVILEGE && around.admin_only >= 0) {
      snprintf(admin, sizeof admin, " (RmProfilingAdminOnly: %d)", around.admin_only);
    }
    refuse(refusal, answer->reason, answer->heals, "%s answered %d (%s)%s: %s", step, result,
           meaning, admin, answer->advice);
    return;
  }
  // Unspecific answers: what is known to make CUPTI give one comes first.
  if (around.mps) {
    refuse(refusal, GPUPROF_PC_REASON_MPS, false,
           "%s answered %d (%s): this process is a client of MPS, under which PC sampling is not "
           "possible",
           step, result, meaning);
    return;
  }
  const uint32_t capability = around.compute_major * 10 + around.compute_minor;
  if (capability != 0 && capability < 75) {
    refuse(refusal, GPUPROF_PC_REASON_GPU_TOO_OLD, false,
           "%s answered %d (%s): PC sampling needs compute capability 7.0 (7.5 from CUDA 13 on), "
           "this GPU has %u.%u",
           step, result, meaning, around.compute_major, around.compute_minor);
    return;
  }
  refuse(refusal, GPUPROF_PC_REASON_FAILED, true, "%s answered %d (%s); tried again", step, result,
         meaning);
}

}  // namespace gpuprof::cupti

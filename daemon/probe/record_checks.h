// SPDX-License-Identifier: Apache-2.0
//
// What makes a record of the ABI acceptable. Any local process can fire the probes with any bytes.
#pragma once

#include "proto/usdt_abi.h"

namespace gpuprof::probe {

inline bool is_valid(const gpuprof_exec_v1& exec) {
  return exec.start_ns != 0 && exec.start_ns <= exec.end_ns && exec.kind >= GPUPROF_KIND_KERNEL &&
         exec.kind <= GPUPROF_KIND_MEMSET;
}

inline bool is_valid(const gpuprof_launch_v1& launch) {
  return launch.weight_q32 >= (1ull << 32) && launch.kind >= GPUPROF_KIND_KERNEL &&
         launch.kind <= GPUPROF_KIND_GRAPH;
}

inline bool is_valid(const gpuprof_pc_sample_v1&) { return true; }  // numbers without a bound

inline bool is_valid(const gpuprof_device_v1&) { return true; }  // its name is sanitised

inline bool is_valid(const gpuprof_process_v1& process) {
  return process.abi_version == GPUPROF_ABI_VERSION;
}

inline bool is_valid(const gpuprof_module_v1& module) {
  return module.event == GPUPROF_MODULE_LOADED || module.event == GPUPROF_MODULE_UNLOADING;
}

inline bool is_valid(const gpuprof_window_v1& window) {
  return (window.event == GPUPROF_WINDOW_OPEN || window.event == GPUPROF_WINDOW_CLOSE) &&
         (window.mode == 1 || window.mode == 2);
}

// Classes that this build does not know come from a newer shim and are somebody's loss all the
// same, but there is no name to count them under.
inline bool is_valid(const gpuprof_drop_v1& drop) {
  return drop.drop_class > GPUPROF_DROP_INVALID && drop.drop_class < GPUPROF_DROP_CLASS_COUNT &&
         drop.detail < GPUPROF_PROBE_COUNT;
}

}  // namespace gpuprof::probe

// SPDX-License-Identifier: Apache-2.0
//
// Every GPU_PROFILED_* variable of the environment, in one table that the README repeats.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpuprof::shim {

struct KnobInfo {
  const char* name;
  const char* values;         // what may be written, for the README's table
  const char* default_value;  // as text; "" if unset is a value of its own
  const char* meaning;        // one sentence
};

// The table, in the order of the README. `count` entries, static storage.
const KnobInfo* knob_table(size_t* count);

enum class SubscribeMode : uint8_t { kOnDemand = 0, kEager = 1 };  // values of the status page

struct Knobs {
  bool disabled = false;                               // GPU_PROFILED_DISABLE
  uint32_t arm_tier = 0;                               // GPU_PROFILED_ARM: enum gpuprof_tier
  SubscribeMode subscribe = SubscribeMode::kOnDemand;  // GPU_PROFILED_SUBSCRIBE
  bool modules = true;                                 // GPU_PROFILED_MODULES
  uint64_t module_bytes = 64u << 20;                   // GPU_PROFILED_MODULE_BYTES, bytes
  uint32_t stack_rate = 0;                             // GPU_PROFILED_STACK_RATE: 0 default,
                                                       // UINT32_MAX ("all") every launch
  uint64_t seed = 0;                                   // GPU_PROFILED_SEED, 0 random
  char cupti_path[512] = {};                           // GPU_PROFILED_CUPTI_PATH, "" if unset
  char log[512] = {};                                  // GPU_PROFILED_LOG, "" silent
  // Names of unknown GPU_PROFILED_* variables and NAME=VALUE of refused values, comma-separated,
  // for the status page; cut with "..." when it does not fit.
  char unknown[256] = {};
};

// Reads the environment; once, in InitializeInjection. Values are copied, since the application may
// change its environment later. Refused values keep the default. In a program that runs with more
// rights than its caller (AT_SECURE: set-user-id, file capabilities) the caller may not name files:
// GPU_PROFILED_LOG and GPU_PROFILED_CUPTI_PATH are refused.
void load_knobs(char* const* environment);
// As load_knobs() left it; the defaults before.
const Knobs& knobs();

// The parser itself, for tests: no global state.
Knobs parse_knobs(char* const* environment, bool secure = false);

}  // namespace gpuprof::shim

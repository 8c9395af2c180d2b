// SPDX-License-Identifier: Apache-2.0
//
// Tools in a process that use CUPTI, and what is known of CUPTI's versions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/target/process.h"

namespace gpuprof::doctor {

// Names of the profilers whose libraries are mapped: each may be the client that holds CUPTI.
std::vector<std::string> cupti_users(const std::vector<target::Mapping>& mappings);

// What does not work with this CUPTI (cuptiGetVersion, or 19 for 12.0 and 12.1) on this driver
// (cuDriverGetVersion; 0: not known), a line each with what to do. Sources: docs/hardware.md, the
// shim's table of versions, ADR 0023.
struct CuptiLimit {
  const char* name;  // of --json
  std::string text;
};
std::vector<CuptiLimit> cupti_limits(uint32_t cupti, uint32_t driver);

// "13.0" of 130001, "12.8" of 26; "API 99" of what is not known.
std::string cupti_version_text(uint32_t cupti);

}  // namespace gpuprof::doctor

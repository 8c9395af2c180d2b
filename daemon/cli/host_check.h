// SPDX-License-Identifier: Apache-2.0
//
// HostCheck: can gpu-profiled, as it is started here, profile on this host?
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/cli/json_writer.h"
#include "daemon/doctor/host.h"

namespace gpuprof::cli {

struct HostCheck {
  doctor::HostFacts facts;
  std::string attach;  // how probes are attached, ProbeSession::describe(); empty: they cannot be
  bool btf = false;
  std::vector<std::pair<const char*, bool>> capabilities;  // "CAP_BPF": held
  std::vector<std::string> refusals;                       // why profiling cannot work, what to do
  std::vector<std::string> warnings;                       // what will not work in it, likewise
};

// Loads the eBPF programs as a profile does, and lets them go. No root needed: what is not
// permitted is a refusal.
HostCheck check_host();

// What the facts mean for profiling, apart from what attaching them told.
std::vector<std::string> host_warnings(const doctor::HostFacts& facts);

std::string host_table(const HostCheck& host);
void write_host(JsonWriter& json, const HostCheck& host);  // one object

}  // namespace gpuprof::cli

// SPDX-License-Identifier: Apache-2.0
//
// Identity: what is said of a process beside its (pid, start time): its number in its own
// namespace, its container and pod, its rank in a job.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/base/process_id.h"
#include "daemon/target/container.h"

namespace gpuprof::target {

struct Identity {
  uint32_t ns_pid = 0;  // in its innermost pid namespace; 0: as we see it, or unknown
  Container container;
  // RANK and LOCAL_RANK of the environment that it was started with, as torchrun, Ray, Accelerate
  // and others set them. Empty: none, or no number of at most 7 digits.
  std::string rank, local_rank;

  // Those that are known, as pprof labels and keys of the summary: ns_pid, container_id, pod_uid,
  // rank, local_rank.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> labels() const;
};

// Reads /proc/PID/{status,cgroup,environ} of a living process; what cannot be read is empty, and
// all is where the number has become another process's. What the cgroup and the environment tell
// is what who started the process, or itself, says.
Identity identity_of(ProcessId process);

// `value` where it is a rank: 0, or up to 7 digits without leading zeros. Else empty.
std::string rank_of(std::string_view value);

}  // namespace gpuprof::target

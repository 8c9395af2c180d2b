// SPDX-License-Identifier: Apache-2.0
// The workload's kernels: twenty functions in two modules.
#pragma once

#include <cuda.h>

#include <string>
#include <vector>

namespace workload {

constexpr size_t kKernels = 20;
constexpr size_t kLongNameKernel = 17;
/// These two have one name and live in different modules.
constexpr size_t kSameNameFirst = 18;
constexpr size_t kSameNameSecond = 19;

struct Kernel {
  std::string name;
  CUfunction function = nullptr;
  uint64_t duration_ns = 0;
};

/// Loads both modules. Ends the process with a message when the driver refuses.
std::vector<Kernel> load_kernels();

/// A graph of `nodes` kernel nodes, captured and instantiated.
CUgraphExec build_graph(const std::vector<Kernel>& kernels, size_t nodes);

}  // namespace workload

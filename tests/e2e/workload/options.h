// SPDX-License-Identifier: Apache-2.0
// The workload's command line.
#pragma once

#include <cstdint>

namespace workload {

struct Options {
  uint64_t threads = 4;
  uint64_t launches = 200'000;  // kernels of all threads together; 0: until --seconds or SIGTERM
  uint64_t rate = 0;            // kernels a second and thread; 0: flat out
  uint64_t seconds = 0;         // 0: until the launches are made
  uint64_t memcpy_every = 0;    // one copy after so many kernels; 0: none
  uint64_t memset_every = 0;
  uint64_t graph_every = 0;
  uint64_t graph_nodes = 10;
  uint64_t driver_every = 0;  // every Nth kernel by cuLaunchKernel itself
  uint64_t delay_ms = 0;      // between cuInit and the first launch
  uint64_t flood = 0;  // so many of kernel_00 first, then each other kernel in one burst of...
  uint64_t flood_bursts = 300;  // ...so many, and so on; a kernel keeps to one call path
  bool main_launches = false;   // the main thread is one of the threads
  bool bursts = false;          // call paths follow from the place in a burst of 64
  bool rate_steps = false;      // thread 0: rate, 100 * rate, rate in turns of half a second
  bool recapture = false;       // captures (and throws away) a graph now and then
};

/// Reads `--name value` and `--flag`; prints usage and exits with 2 on anything unknown.
Options parse(int argc, char** argv);

}  // namespace workload

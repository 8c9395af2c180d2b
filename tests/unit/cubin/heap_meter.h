// SPDX-License-Identifier: Apache-2.0
//
// HeapMeter: what the code under test had allocated at most, and the CPU time it took.
#pragma once

#include <cstdint>
#include <ctime>

namespace gpuprof::cubin::test {

// One at a time, on the thread that made it. Counts operator new of the whole process.
class HeapMeter {
 public:
  HeapMeter();
  [[nodiscard]] uint64_t peak_bytes() const;
  // CPU time, so that a loaded machine changes nothing.
  [[nodiscard]] double seconds() const;

 private:
  static double now();

  uint64_t before_;
  double start_;
};

}  // namespace gpuprof::cubin::test

// SPDX-License-Identifier: Apache-2.0
//
// What libdwfl makes of the same sample: the reference that the unwinder is compared with.
#pragma once

#include <sys/types.h>

#include <memory>
#include <vector>

#include "tests/unit/unwind/capture.h"

namespace gpuprof::unwind::test {

class DwflReference {
 public:
  explicit DwflReference(pid_t pid);
  ~DwflReference();
  // Leaf first, callers -1 as in RawStack.
  std::vector<uint64_t> unwind(const Sample& sample);
  // After the process mapped something new.
  void report();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gpuprof::unwind::test

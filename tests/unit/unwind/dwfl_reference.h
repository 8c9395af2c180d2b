// SPDX-License-Identifier: Apache-2.0
//
// What libdwfl makes of the same sample: the reference that the unwinder is compared with.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "daemon/unwind/machine.h"
#include "tests/unit/unwind/capture.h"

namespace gpuprof::unwind::test {

// An ELF file of a process that is over.
struct RecordedModule {
  std::string name;
  std::string image;
  uint64_t bias = 0;
};

class DwflReference {
 public:
  explicit DwflReference(pid_t pid);
  explicit DwflReference(const std::vector<RecordedModule>& modules,
                         Machine machine = Machine::kX86_64);
  ~DwflReference();
  // Leaf first, callers -1 as in RawStack.
  std::vector<uint64_t> unwind(const Sample& sample);
  // After the process mapped something new.
  void report();

 private:
  struct State;
  void attach();
  std::unique_ptr<State> state_;
};

}  // namespace gpuprof::unwind::test

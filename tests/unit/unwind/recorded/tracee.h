// SPDX-License-Identifier: Apache-2.0
//
// Tracee: a program that is stopped wherever it executes `int3`, in any of its threads.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/unit/unwind/recorded/recording.h"

namespace gpuprof::unwind::test {

// Runs a program to its end. Its own processes are left alone; signals go where they would.
class Tracee {
 public:
  // `command` is looked for on the PATH. Ends the program where it cannot be started.
  explicit Tracee(const std::vector<std::string>& command);
  // Calls `stopped` with registers and memory for each stop: at an `int3`, then after each of the
  // thread's next `steps` instructions. Returns the program's exit status (128 + signal).
  int run(int steps, const std::function<void(const Recording::Stack&)>& stopped);
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  [[nodiscard]] Recording::Stack stack_of(pid_t thread) const;

  pid_t pid_ = 0;
};

}  // namespace gpuprof::unwind::test

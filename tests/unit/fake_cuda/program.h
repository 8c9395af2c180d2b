// SPDX-License-Identifier: Apache-2.0
// Runs a program of the build tree on the fake driver with the real shim injected.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fakecuda {

using Environment = std::map<std::string, std::string>;

struct Outcome {
  int status = -1;  // exit status, or 128 + signal, or -1: killed because it hung
  double seconds = 0;
  std::string errors;      // its stderr
  std::string truth;       // the JSON text, empty if the process did not write it
  std::string violations;  // lines of $FAKE_CUDA_REPORT

  /// The first number called `key` in the truth; the sums of the whole run come first. -1: none.
  [[nodiscard]] int64_t number(const std::string& key) const;
};

/// A process that runs in the background.
class Program {
 public:
  /// `arguments[0]` is the program's path. The shim is injected, the fake CUPTI 13 is the one it
  /// finds; `environment` adds and overrides.
  Program(const std::vector<std::string>& arguments, const Environment& environment);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// Waits up to `seconds`, then kills it: status -1.
  Outcome wait(double seconds = 90);

 private:
  pid_t pid_ = -1;
  std::string prefix_;  // of its files
  double started_ = 0;
};

inline Outcome run(const std::vector<std::string>& arguments, const Environment& environment = {}) {
  return Program(arguments, environment).wait();
}

}  // namespace fakecuda

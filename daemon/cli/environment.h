// SPDX-License-Identifier: Apache-2.0
//
// The environment that `run` gives its command.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/cli/invoker.h"
#include "daemon/cli/options.h"

namespace gpuprof::cli {

// NAME=VALUE strings; the last assignment of a name counts, as in environ(7) after setenv.
class Environment {
 public:
  static Environment current();
  explicit Environment(std::vector<std::string> entries) : entries_(std::move(entries)) {}

  [[nodiscard]] const std::string* find(std::string_view name) const;  // the whole entry
  [[nodiscard]] std::string value(std::string_view name) const;        // "" where unset
  void set(std::string_view name, std::string_view value);
  void unset(std::string_view name);

  [[nodiscard]] const std::vector<std::string>& entries() const { return entries_; }

 private:
  std::vector<std::string> entries_;
};

inline constexpr const char* kInjectionVariable = "CUDA_INJECTION64_PATH";

// kInvalidArgument: CUDA_INJECTION64_PATH already names another tool's library and --force is not
// given. Two injections cannot share the variable, and silently dropping the other one would.
Status check_injection(const Environment& environment, const std::string& shim, bool force);

// HOME, USER, LOGNAME of `invoker` and none of sudo's variables, where the command switches to it.
void set_identity(Environment& environment, const Invoker& invoker);

// The variables that make cuInit load the shim and arm it before the first launch.
void set_profiling(Environment& environment, const Options& options, const std::string& shim);

}  // namespace gpuprof::cli

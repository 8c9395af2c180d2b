// SPDX-License-Identifier: Apache-2.0
//
// DebugSource: debug files that come from elsewhere, later.
#pragma once

#include <string>

#include "daemon/base/unique_fd.h"

namespace gpuprof::symbolize {

// Neither call waits. Threads: the symbolizers'.
class DebugSource {
 public:
  virtual ~DebugSource() = default;
  // The debug file of this build (lower-case hex) will be asked for. May be said again.
  virtual void want(const std::string& build_id) = 0;
  // It, open for reading, if it has come; only once. Whose file it is has to be looked at.
  virtual UniqueFd take(const std::string& build_id) = 0;
};

}  // namespace gpuprof::symbolize

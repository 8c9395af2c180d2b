// SPDX-License-Identifier: Apache-2.0
//
// Where the shim of this installation lies.
#pragma once

#include <string>

namespace gpuprof::cli {

// `option` (--shim), else GPU_PROFILED_SHIM, else the installed one relative to our executable; as
// an absolute path, since the driver opens it from another working directory. Need not exist.
std::string find_shim(const std::string& option);

}  // namespace gpuprof::cli

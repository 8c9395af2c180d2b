// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/shim_path.h"

#include <cstdlib>
#include <filesystem>

#include "daemon/cli/version.h"
#include "daemon/target/shim_file.h"

namespace gpuprof::cli {

std::string find_shim(const std::string& option) {
  std::error_code error;
  const char* from_environment = std::getenv("GPU_PROFILED_SHIM");
  std::filesystem::path path;
  if (!option.empty()) {
    path = option;
  } else if (from_environment != nullptr && *from_environment != '\0') {
    path = from_environment;
  } else {
    const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
    path = self.parent_path() / kShimFromExecutable / target::kShimFileName;
    // A copy beside the executable: the unpacked archive, the build tree.
    const std::filesystem::path beside = self.parent_path() / target::kShimFileName;
    if (!std::filesystem::exists(path, error) && std::filesystem::exists(beside, error))
      path = beside;
  }
  const std::filesystem::path absolute =
      std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error);
  return error ? path.string() : absolute.string();
}

}  // namespace gpuprof::cli

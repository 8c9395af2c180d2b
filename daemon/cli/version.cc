// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/version.h"

#include "proto/memfd_layout.h"
#include "proto/usdt_abi.h"

namespace gpuprof::cli {
namespace {

std::string commit_text() {
  const std::string commit = build::kCommit;
  if (commit != "unknown") return "commit " + commit;
  return "commit unknown: built neither in a git checkout nor from an archive of one";
}

}  // namespace

std::string version_text() {
  return std::string("gpu-profiled ") + kVersion + "\n" + commit_text() + "\nABI " +
         std::to_string(GPUPROF_ABI_VERSION) +
         ": probe records, status and control page of the shim\n";
}

}  // namespace gpuprof::cli

// SPDX-License-Identifier: Apache-2.0
//
// Copies of libcupti in and around a process, and what may come of there being several.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/target/shim_status.h"

namespace gpuprof::cli {

// A second libcupti that matters beside the one that the shim uses.
struct CuptiCopies {
  std::string used;     // the shim's, as its status page names it
  std::string other;    // as the process sees it
  bool mapped = false;  // `other` is mapped too: CUPTI has two states in one process
  // Functions that only `other` has. A library that needs one of them and is loaded later gets the
  // shim's copy, by its soname, and cannot be loaded.
  std::vector<std::string> lacking;
};

// Looks in the process's mappings and, where the shim has loaded the copy it uses, in
// LD_LIBRARY_PATH, CONDA_PREFIX and the Python package folders of mapped files, inside the
// process's root. Files are judged by the functions they export, not by a version. Nullopt: there
// is none, or it cannot be told (the process is gone).
std::optional<CuptiCopies> find_cupti_copies(uint32_t pid, const target::ShimStatus& status);

// In one line, with what to do.
std::string explain_cupti_copies(uint32_t pid, const CuptiCopies& copies);

}  // namespace gpuprof::cli

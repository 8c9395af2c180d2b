// SPDX-License-Identifier: Apache-2.0
//
// GpuFunctions: kernels and device functions as the model's functions, each once.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/join/model.h"

namespace gpuprof::join {

// A kernel has one Function, whether its source is known or not: in a flame graph they are one
// frame. Only where its instructions are said to lie in several files (line tables without inlined
// calls) has it one for each, of the same name. Adds to the model that it is given; the names are
// mangled until name_all().
class GpuFunctions {
 public:
  explicit GpuFunctions(Model& model) : model_(model) {}

  // The function, wherever its source may be.
  uint32_t of(std::string_view mangled);
  // Where `file` is what its instructions say; empty: they say nothing.
  uint32_t in_file(std::string_view mangled, std::string_view file);

  // Gives all their shown names: short ones; pprof's reports merge functions by these, so where two
  // functions' are equal, the full ones, and where even these are equal, mangled ones.
  void name_all();

 private:
  struct Known {
    std::vector<uint32_t> functions;  // of the model, one a file
  };
  Model& model_;
  std::map<std::string, Known, std::less<>> known_;
  std::vector<const std::string*> order_;  // of known_'s keys, as they came
};

}  // namespace gpuprof::join

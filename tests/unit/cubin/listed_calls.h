// SPDX-License-Identifier: Apache-2.0
//
// A fixture's calls as nvdisasm lists them: its .calls, of tests/data/cubin/oracles.py.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/unit/cubin/fixture.h"

namespace gpuprof::cubin::test {

struct ListedCall {
  uint64_t offset = 0;
  std::string callee;  // "*": to an address in a register
};

// By the section's function.
inline std::map<std::string, std::vector<ListedCall>> listed_calls(const std::string& fixture) {
  std::map<std::string, std::vector<ListedCall>> all;
  std::vector<ListedCall>* calls = nullptr;
  std::ifstream stream(fixture_path(fixture + ".calls"));
  for (std::string first, second; stream >> first >> second;) {
    if (first == "function") {
      calls = &all[second];
    } else {
      calls->push_back({std::stoull(first, nullptr, 16), second});
    }
  }
  return all;
}

// "inline_chain.sm_90" and all others.
inline std::vector<std::string> fixtures() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(CUBIN_FIXTURES)) {
    if (entry.path().extension() == ".cubin") names.push_back(entry.path().stem());
  }
  return names;
}

}  // namespace gpuprof::cubin::test

// SPDX-License-Identifier: Apache-2.0
//
// AddressPlan: gives each module of a model a range of file addresses of its own.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/join/model.h"

namespace gpuprof::pprof {

struct MappingRange {
  uint64_t start = 0;        // page-aligned
  uint64_t limit = 0;        // page-aligned, beyond start
  uint64_t file_offset = 0;  // what `start` stands for in the module's own address space
};

// Ranges are page-aligned, disjoint, in the modules' order and never adjacent: pprof joins adjacent
// mappings. A module keeps the distances between its addresses where they span at most 1 TiB;
// otherwise (JIT code all over an address space, a hostile extent) its locations are numbered.
class AddressPlan {
 public:
  explicit AddressPlan(const join::Model& model);

  [[nodiscard]] const MappingRange& range(uint32_t module) const { return ranges_[module]; }
  // File address of a location, by its index.
  [[nodiscard]] uint64_t address(uint32_t location) const { return addresses_[location]; }

 private:
  std::vector<MappingRange> ranges_;
  std::vector<uint64_t> addresses_;
};

}  // namespace gpuprof::pprof

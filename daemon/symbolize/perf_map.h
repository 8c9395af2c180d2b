// SPDX-License-Identifier: Apache-2.0
//
// PerfMap: names of generated code from /tmp/perf-NSPID.map.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/symbolize/code_ranges.h"
#include "daemon/symbolize/growing_file.h"

namespace gpuprof::unwind {
class AddressSpace;
}

namespace gpuprof::symbolize {

// Format (Linux tools/perf/Documentation/jit-interface.txt): lines of "START SIZE name",
// hexadecimal, appended while the process runs; a later line replaces what it overlaps at lookup.
// The file is the target's (GrowingFile), named by its own pid; malformed lines are dropped.
// Memory: at most kMaxBytes of the file are read, kMaxEntries kept, names up to kMaxNameBytes.
class PerfMap {
 public:
  static constexpr uint64_t kMaxBytes = uint64_t{32} << 20;
  static constexpr size_t kMaxEntries = 262144;
  static constexpr size_t kMaxNameBytes = 1024;

  explicit PerfMap(const unwind::AddressSpace& space) : space_(space), file_(space, kMaxBytes) {}

  // The name at `pc`, or empty. Looks whether the file grew if pc is unknown. The view is valid
  // until the next find().
  std::string_view find(uint64_t pc);

  // Takes in whole lines; for find() and for tests.
  void parse(std::string_view text);
  [[nodiscard]] size_t size() const { return ranges_.size(); }

 private:
  struct Name {
    uint32_t at = 0, bytes = 0;
  };
  bool read_more();

  const unwind::AddressSpace& space_;
  GrowingFile file_;
  CodeRanges ranges_;
  std::vector<Name> by_range_;
  std::string names_;
};

}  // namespace gpuprof::symbolize

// SPDX-License-Identifier: Apache-2.0
//
// PerfMap: names of generated code from /tmp/perf-NSPID.map.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpuprof::unwind {
class AddressSpace;
}

namespace gpuprof::symbolize {

// Format (Linux tools/perf/Documentation/jit-interface.txt): lines of "START SIZE name",
// hexadecimal, appended while the process runs; a later line replaces what it overlaps at lookup.
// The file is the target's: opened in its root by its own pid, believed only if it belongs to the
// target's user or to root, malformed lines dropped. Memory: at most kMaxBytes of the file are
// read, kMaxEntries kept, names up to kMaxNameBytes.
class PerfMap {
 public:
  static constexpr uint64_t kMaxBytes = uint64_t{32} << 20;
  static constexpr size_t kMaxEntries = 262144;
  static constexpr size_t kMaxNameBytes = 1024;

  explicit PerfMap(const unwind::AddressSpace& space) : space_(space) {}

  // The name at `pc`, or empty. Looks whether the file grew if pc is unknown, at most every 100 ms.
  // The view is valid until the next find().
  std::string_view find(uint64_t pc);

  // Takes in whole lines; for find() and for tests.
  void parse(std::string_view text);
  [[nodiscard]] size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    uint64_t start = 0, end = 0;
    uint32_t name = 0, name_bytes = 0;
    uint32_t order = 0;
  };
  bool read_more();
  void sort();
  [[nodiscard]] const Entry* lookup(uint64_t pc) const;

  const unwind::AddressSpace& space_;
  std::vector<Entry> entries_;
  std::string names_;
  uint64_t read_bytes_ = 0;
  uint64_t inode_ = 0;
  int64_t next_look_ns_ = 0;
};

}  // namespace gpuprof::symbolize

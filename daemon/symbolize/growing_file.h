// SPDX-License-Identifier: Apache-2.0
//
// GrowingFile: what a target appends to a file of its own while it runs.
#pragma once

#include <cstdint>
#include <string>

namespace gpuprof::unwind {
class AddressSpace;
}

namespace gpuprof::symbolize {

// Opened in the target's root for each look, at most every 100 ms, and believed only if it belongs
// to the target's user or to root. At most `max_bytes` from its start are read.
class GrowingFile {
 public:
  GrowingFile(const unwind::AddressSpace& space, uint64_t max_bytes)
      : space_(space), max_bytes_(max_bytes) {}

  // Whether it is time to look again. True once for each look.
  bool is_due();
  // What follows on the bytes taken, at most `most`; empty if there is nothing. `is_another`: a new
  // file lies there, and what was taken before is void.
  std::string read(const std::string& path, uint64_t most, bool& is_another);
  // These bytes are done with: more than were read, if the rest of something is not needed.
  void take(uint64_t bytes) { taken_ = bytes > UINT64_MAX - taken_ ? UINT64_MAX : taken_ + bytes; }

 private:
  const unwind::AddressSpace& space_;
  uint64_t max_bytes_;
  uint64_t taken_ = 0;
  uint64_t inode_ = 0;
  uint64_t size_ = 0;  // when it was last looked at
  int64_t next_look_ns_ = 0;
};

}  // namespace gpuprof::symbolize

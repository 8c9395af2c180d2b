// SPDX-License-Identifier: Apache-2.0
//
// MappedFile: a file of a target, mapped so that its owner cannot kill the daemon with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "daemon/base/result.h"

namespace gpuprof::unwind {

// A private copy-on-write mapping: only touched pages cost memory, and they are shared with the
// target through the page cache. The owner of the file may truncate it at any time; a read beyond
// the new end raises SIGBUS. The first MappedFile installs a process-wide SIGBUS handler that puts
// a page of zeros under the faulting address if it lies in one of these mappings, so parsers see
// damaged contents, and hands every other SIGBUS on to the handler before it.
// Writable (in memory only), because libelf updates section headers in place when it decompresses.
// Threads: any. At most kMaxFiles at a time.
class MappedFile {
 public:
  static constexpr size_t kMaxFiles = 8192;
  static constexpr uint64_t kMaxBytes = uint64_t{16} << 30;  // address space only

  MappedFile() = default;
  ~MappedFile() { reset(); }
  MappedFile(MappedFile&& other) noexcept
      : bytes_(std::exchange(other.bytes_, {})), slot_(std::exchange(other.slot_, kMaxFiles)) {}
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Maps the regular file behind `fd`, which may be closed afterwards.
  static Result<MappedFile> map(int fd);
  [[nodiscard]] std::span<uint8_t> bytes() const { return bytes_; }
  // Gives back the memory of the pages that lie wholly in [begin, end): they are read again when
  // they are needed. What was written there is lost.
  void release(uint64_t begin, uint64_t end);

 private:
  void reset();

  std::span<uint8_t> bytes_;
  size_t slot_ = kMaxFiles;
};

}  // namespace gpuprof::unwind

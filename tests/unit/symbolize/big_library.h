// SPDX-License-Identifier: Apache-2.0
//
// BigLibrary: a shared library as large as PyTorch's, mapped into this process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "tests/unit/unwind/capture.h"

namespace gpuprof::symbolize::test {

// An unlinked temporary ELF file with `functions` functions of kFunctionBytes each, .eh_frame with
// its search table, .symtab with mangled C++ names of 120 to 130 bytes as libtorch_cpu has them,
// and no build id. Its code is a hole in the file. Each function's frame is kFrameBytes large. Ends
// the program where there is no room for it.
class BigLibrary {
 public:
  static constexpr uint64_t kFunctionBytes = 1280;
  static constexpr uint64_t kFrameBytes = 64;

  BigLibrary(size_t functions, unsigned number);
  ~BigLibrary();
  BigLibrary(const BigLibrary&) = delete;
  BigLibrary& operator=(const BigLibrary&) = delete;

  // A return address in a function, `place` bytes behind its prologue.
  [[nodiscard]] uint64_t return_address(size_t function, uint64_t place) const;
  [[nodiscard]] std::string mangled_name(size_t function) const;
  [[nodiscard]] size_t functions() const { return functions_; }
  [[nodiscard]] uint64_t file_bytes() const { return file_bytes_; }

 private:
  size_t functions_;
  unsigned number_;
  uint64_t file_bytes_ = 0;
  uint8_t* code_ = nullptr;
};

// A stack of `frames` frames, whose return addresses `next` gives, leaf first.
template <class Next>
unwind::test::Sample stack_through(size_t frames, const Next& next) {
  constexpr uint64_t kBottom = 0x7ffd'0000'0000;
  unwind::test::Sample sample;
  sample.bytes.resize(frames * BigLibrary::kFrameBytes);
  sample.stack_address = kBottom;
  sample.stack_top = kBottom + sample.bytes.size();
  sample.regs[7] = kBottom;
  sample.regs[16] = next();
  for (size_t frame = 1; frame < frames; ++frame) {
    const uint64_t word = next();
    std::memcpy(&sample.bytes[frame * BigLibrary::kFrameBytes - 8], &word, 8);
  }
  return sample;  // the outermost one returns to 0
}

}  // namespace gpuprof::symbolize::test

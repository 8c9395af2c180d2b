// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpuprof::cupti {

/// Everything that was tried to find a libcupti, for the one line that a user sees. Bounded: what
/// finds no room is counted in its last words.
class Attempts {
 public:
  /// "; NAME: ERROR", where dlerror()'s habit of repeating the path is taken out and a file that is
  /// not there is "not found". Names in a row with one error share it: "A, B: not found". A name is
  /// told once, a long one without its middle.
  void add(const char* name, const char* error) noexcept;
  [[nodiscard]] const char* text() const noexcept { return text_; }

 private:
  [[nodiscard]] bool named(const char* name) const noexcept;

  size_t used_ = 0;
  size_t error_at_ = 0;  // where the last error begins, after ": "
  uint32_t left_out_ = 0;
  char text_[768] = {};
};

}  // namespace gpuprof::cupti

// SPDX-License-Identifier: Apache-2.0
//
// Console: our lines on stderr, and the progress line that they must not mix with.
#pragma once

#include <string>
#include <string_view>

namespace gpuprof::cli {

// Progress is shown only where stderr is a terminal. One thread.
class Console {
 public:
  Console();
  // "gpu-profiled: TEXT", one line whatever TEXT holds.
  void line(std::string_view text);
  // As it is, for several lines.
  void block(std::string_view text);
  // Replaces the progress line.
  void progress(std::string_view text);
  void clear_progress();
  [[nodiscard]] bool is_terminal() const { return terminal_; }

 private:
  bool terminal_ = false;
  bool shown_ = false;
};

}  // namespace gpuprof::cli

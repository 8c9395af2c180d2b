// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

namespace gpuprof::cli {
namespace {

void write_stderr(std::string_view text) {
  while (!text.empty()) {
    const ssize_t put = ::write(STDERR_FILENO, text.data(), text.size());
    if (put <= 0) return;  // nobody reads: not worth failing for
    text.remove_prefix(static_cast<size_t>(put));
  }
}

}  // namespace

Console::Console() : terminal_(::isatty(STDERR_FILENO) == 1) {}

void Console::line(std::string_view text) {
  clear_progress();
  std::string out = "gpu-profiled: " + std::string(text);
  for (char& c : out) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  write_stderr(out + "\n");
}

void Console::block(std::string_view text) {
  clear_progress();
  write_stderr(text);
}

void Console::progress(std::string_view text) {
  if (!terminal_) return;
  winsize size = {};
  const size_t width =
      ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1u : 79;
  write_stderr("\r\033[K" + std::string(text.substr(0, width)));
  shown_ = true;
}

void Console::clear_progress() {
  if (!shown_) return;
  shown_ = false;
  write_stderr("\r\033[K");
}

}  // namespace gpuprof::cli

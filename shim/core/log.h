// SPDX-License-Identifier: Apache-2.0
//
// The shim's voice. Silent unless GPU_PROFILED_LOG says otherwise; one line on stderr when it
// declines. Formats into a buffer on the stack and writes with one raw system call: no stdio lock,
// no allocation, no cancellation point, so that a callback may log.
#pragma once

namespace gpuprof::shim {

// Opens the target of GPU_PROFILED_LOG: "stderr", or a path that is appended to (mode 0600, no
// symlink followed). Once, after load_knobs(). A file that cannot be opened leaves the log silent.
void open_log(const char* target);
bool log_enabled();
// "gpu-profiled[PID]: " + text + newline, at most 1 KiB; nothing where the log is silent.
void log_line(const char* format, ...) __attribute__((format(printf, 1, 2)));
// The one line that a user sees without asking: to stderr, and to the log where that is a file.
void complain(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace gpuprof::shim

// SPDX-License-Identifier: Apache-2.0
//
// Processes that are started to be asked something: what they print, within limits.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/base/unique_fd.h"

namespace gpuprof::cli {

// What a process ends with that could not become the program that it was started for.
inline constexpr int kNoExec = 126;

struct AskedProcess {
  pid_t pid = -1;
  UniqueFd answers;  // its standard output
};

// `become` is called in the new process, with nothing to read and no messages, and is
// async-signal-safe; if it comes back the process ends with kNoExec.
Result<AskedProcess> start_asked(const std::function<void()>& become);

struct Said {
  std::string text;
  bool late = false;
};

// Until `last` ends the text ("": none does), the end, `most_bytes` or more, or the deadline.
Said read_words(int fd, std::string_view last, size_t most_bytes,
                std::chrono::steady_clock::time_point deadline);

// The wait status of a child that is killed, unless it is `leaving` because it has said its last;
// -1: it cannot be killed at once, and is left.
int end_process(pid_t pid, bool leaving);

// For execve; they live as long as `strings`.
std::vector<char*> pointers(const std::vector<std::string>& strings);

// What `words`, a program's path and its arguments, prints with nothing to read, an environment of
// PATH and LC_ALL alone, and no message. kNotFound: it ended with another status than 0;
// kUnavailable: it cannot be started, was late, or printed too much.
Result<std::string> answer_of(const std::vector<std::string>& words, size_t most_bytes,
                              std::chrono::milliseconds patience);

}  // namespace gpuprof::cli

// SPDX-License-Identifier: Apache-2.0
//
// Deputy: a small process that keeps the few privileges which the profiler gives up.
#pragma once

#include <sys/types.h>

#include <optional>
#include <span>
#include <string>

#include "daemon/base/result.h"
#include "daemon/base/unique_fd.h"

namespace gpuprof::cli {

class CubinFiles;
class OutputFile;

// Giving a file its name in a directory of the user that called sudo takes CAP_DAC_OVERRIDE, and
// passing a signal to a command that runs as that user takes CAP_KILL. The process that parses what
// hostile targets send must not have them (docs/adr/0010), so they stay in a child forked before
// they are dropped. It understands three requests, "publish file N", "signal the command" and "save
// these bytes as cubin X", for the files, the one command and the directory it was forked with, and
// nothing that came from a target reaches it but the bytes that it copies. It ends when we do, by
// whatever signal, and removes a temporary file that never got its name. Lifetime: start it when
// the files are open and the command is forked; the destructor ends and reaps it. Threads: one.
class Deputy {
 public:
  // `files` are handed over: only publish() names them from now on. `command` -1: none. `cubins`
  // null: none; else the deputy keeps CAP_CHOWN too, where its files are another user's.
  static Result<Deputy> start(std::span<OutputFile* const> files, pid_t command,
                              const CubinFiles* cubins = nullptr);

  // OutputFile::commit() calls these; errors are its own, or kUnavailable when the deputy was
  // killed.
  Result<std::string> publish(uint32_t file);
  // The command's pidfd is held, so a number that was reused is not hit.
  Status signal(int number);

  Deputy(Deputy&& other) noexcept;
  Deputy& operator=(Deputy&&) = delete;
  ~Deputy();
  // CubinFiles::save(), in its process.
  Result<bool> save_cubin(const std::string& sha256, int from);
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  struct Request;
  Deputy() = default;
  Result<std::string> ask(const Request& request, int descriptor = -1);

  pid_t pid_ = -1;
  UniqueFd socket_;
};

}  // namespace gpuprof::cli

// SPDX-License-Identifier: Apache-2.0
//
// Deputy: a small process that keeps the few privileges which the profiler gives up.
#pragma once

#include <sys/types.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "daemon/base/result.h"
#include "daemon/base/unique_fd.h"

namespace gpuprof::cli {

class CubinFiles;
class OutputFile;
class OutputSeries;

// Giving a file its name in a directory of the user that called sudo takes CAP_DAC_OVERRIDE, and
// passing a signal to a command that runs as that user takes CAP_KILL. The process that parses what
// hostile targets send must not have them (docs/adr/0010), so they stay in a child forked before
// they are dropped. It understands four requests, "publish file N", "signal the command", "save
// these bytes as cubin X" and "write these bytes as a file of series N", for the files, the one
// command and the directories it was forked with, and nothing that came from a target reaches it
// but the bytes that it copies. It ends when we do, by
// whatever signal, and removes a temporary file that never got its name. Lifetime: start it when
// the files are open and the command is forked; the destructor ends and reaps it. Threads: one.
class Deputy {
 public:
  // `files` are handed over: only publish() names them from now on. `command` -1: none. `cubins`
  // null: none; else the deputy keeps CAP_CHOWN too, where its files are another user's.
  static Result<Deputy> start(std::span<OutputFile* const> files, pid_t command,
                              const CubinFiles* cubins = nullptr);
  // Another one, which writes files of these series and nothing else, so that a slow disk holds up
  // no signal. They are copied: ours write no more.
  static Result<Deputy> start_writer(std::span<OutputSeries* const> series);

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
  // OutputSeries::write(), in its process.
  Result<std::string> write(uint32_t series, const std::string& name, std::string_view bytes);
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  struct Request;
  struct Charge;
  Deputy() = default;
  static Result<Deputy> fork(const Charge& charge);
  [[noreturn]] static void serve(const Charge& charge, UniqueFd socket, UniqueFd pidfd);
  Result<std::string> ask(const Request& request, int descriptor = -1);

  pid_t pid_ = -1;
  UniqueFd socket_;
};

}  // namespace gpuprof::cli

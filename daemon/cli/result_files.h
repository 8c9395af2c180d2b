// SPDX-License-Identifier: Apache-2.0
//
// ResultFiles: the profile and the JSON summary, checked before the run and written after it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "daemon/cli/console.h"
#include "daemon/cli/cubin_files.h"
#include "daemon/cli/deputy.h"
#include "daemon/cli/invoker.h"
#include "daemon/cli/options.h"
#include "daemon/cli/output_file.h"
#include "daemon/cli/session.h"
#include "daemon/cli/window_files.h"

namespace gpuprof::cli {

class ResultFiles {
 public:
  // `comm` and `pid` name the default file. Errors: kIo, one line that says what to do.
  static Result<ResultFiles> open(const Options& options, const Invoker& owner,
                                  std::string_view comm, uint32_t pid);

  // Starts the fetcher of debug files where one is asked for, and the deputy for the files and for
  // the command, then drops what privileges are its alone.
  // `command` -1: none. A failure leaves the privileges as they are.
  Status drop_privileges(Session& session, pid_t command, Console& console);
  // Null before drop_privileges().
  [[nodiscard]] Deputy* deputy() { return deputy_.get(); }

  // Under --window: ends the window where it is time to, and hands it to the writer. Once a tick;
  // `meanwhile` is what the caller does after each tick of its own.
  void tick(Session& session, Console& console, const std::function<void()>& meanwhile = nullptr);

  // Assembles and writes both files and prints the summary. Returns kExitProfileWritten or
  // kExitFailure, with its reason told.
  int write(Session& session, const join::JoinResult& result, Console& console);

 private:
  explicit ResultFiles(Invoker owner) : owner_(std::move(owner)) {}
  Status open_one(const Options& options, std::string_view comm, uint32_t pid);
  void save_cubins(Session& session);
  int write_last_window(Session& session, const join::JoinResult& result, Console& console);

  std::unique_ptr<Deputy> deputy_;  // outlives the files
  Invoker owner_;
  std::unique_ptr<WindowFiles> windows_;  // null: one profile
  std::optional<OutputFile> profile_;
  std::optional<OutputFile> json_;
  std::optional<CubinFiles> cubins_;
  SavedCubins saved_cubins_;
  std::set<std::string> tried_cubins_;
};

}  // namespace gpuprof::cli

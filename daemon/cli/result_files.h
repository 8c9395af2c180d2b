// SPDX-License-Identifier: Apache-2.0
//
// ResultFiles: the profile and the JSON summary, checked before the run and written after it.
#pragma once

#include <optional>
#include <string>

#include "daemon/cli/console.h"
#include "daemon/cli/invoker.h"
#include "daemon/cli/options.h"
#include "daemon/cli/output_file.h"
#include "daemon/cli/session.h"

namespace gpuprof::cli {

class ResultFiles {
 public:
  // `comm` and `pid` name the default file. Errors: kIo, one line that says what to do.
  static Result<ResultFiles> open(const Options& options, const Invoker& owner,
                                  std::string_view comm, uint32_t pid);

  // Assembles and writes both files and prints the summary. Returns kExitProfileWritten or
  // kExitFailure, with its reason told.
  int write(Session& session, const join::JoinResult& result, Console& console);

 private:
  explicit ResultFiles(OutputFile profile) : profile_(std::move(profile)) {}
  OutputFile profile_;
  std::optional<OutputFile> json_;
};

}  // namespace gpuprof::cli

// SPDX-License-Identifier: Apache-2.0
//
// OutputSeries: files that are written one after another into one directory.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/result.h"
#include "daemon/base/unique_fd.h"
#include "daemon/cli/invoker.h"
#include "daemon/cli/output_file.h"

namespace gpuprof::cli {

// Each as an OutputFile: whole or not at all, 0600, the invoking user's. Names that come again get
// a "-2", "-3", … where nothing may be overwritten. One thread.
class OutputSeries {
 public:
  // `directory` as NamePattern has it; `probe_name` a name that a file of the series may have.
  // Errors: as OutputFile::open(), and kIo where a file cannot be made in the directory now.
  static Result<OutputSeries> open(const std::string& directory, const std::string& probe_name,
                                   OutputFile::Existing existing, const Invoker& owner,
                                   const std::string& option);

  // Returns the path it got. On failure nothing is left.
  Result<std::string> write(const std::string& name, std::string_view bytes);

  // Files become another user's: that takes CAP_CHOWN.
  [[nodiscard]] bool gives_away() const;
  [[nodiscard]] bool is_same_directory(const OutputSeries& other) const;
  void add_descriptors(std::vector<int>& out) const { out.push_back(directory_fd_.get()); }

 private:
  OutputSeries() = default;

  std::string directory_, option_;
  OutputFile::Existing existing_ = OutputFile::Existing::kKeep;
  Invoker owner_;
  UniqueFd directory_fd_;
  std::string last_name_;  // the latest, and the number it got
  int last_number_ = 0;
};

}  // namespace gpuprof::cli

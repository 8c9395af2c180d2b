// SPDX-License-Identifier: Apache-2.0
//
// NamePattern: the file names of a series, told apart by time.
#pragma once

#include <ctime>
#include <string>

#include "daemon/base/result.h"

namespace gpuprof::cli {

// A path whose last part may have conversions of strftime(3). Those that give letters, digits and
// the marks - + : alone are known; what could make another directory (%D, %x), a blank or a line
// break (%c, %e, %n, %t) is not, nor is a conversion in a directory's name, which must be there
// before the run.
class NamePattern {
 public:
  // `option` is what the user wrote it after. kInvalidArgument: one line that names the conversion.
  static Result<NamePattern> parse(const std::string& text, const std::string& option);

  // In local time, as date(1) has it: TZ=UTC makes it UTC. "%%" is a percent sign.
  [[nodiscard]] std::string name_at(time_t when) const;
  // Ends in '/' where it is not empty.
  [[nodiscard]] const std::string& directory() const { return directory_; }
  [[nodiscard]] const std::string& option() const { return option_; }
  // Names of different times may differ.
  [[nodiscard]] bool has_time() const { return has_time_; }

 private:
  std::string directory_, name_, option_;
  bool has_time_ = false;
};

}  // namespace gpuprof::cli

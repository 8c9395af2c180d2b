// SPDX-License-Identifier: Apache-2.0
//
// Results as lines for people and as JSON for programs.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "tools/elfgate/checks.h"
#include "tools/elfgate/facts.h"

namespace gpuprof::elfgate {

// FILE: CHECK: WHAT (WHERE): WHY; mend: HOW
[[nodiscard]] std::string violation_line(std::string_view file, const Violation& violation);

// One object a line: file, and violations or error.
[[nodiscard]] std::string check_json(std::string_view file, std::span<const Violation> violations);
[[nodiscard]] std::string error_json(std::string_view file, std::string_view error);
[[nodiscard]] std::string facts_json(std::string_view file, const Facts& facts);

}  // namespace gpuprof::elfgate
